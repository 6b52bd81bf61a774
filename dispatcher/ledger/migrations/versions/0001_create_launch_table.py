# SPDX-License-Identifier: Apache-2.0
"""Create the launch table.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from airflow.utils.sqlalchemy import UtcDateTime
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "dispatcher_launch",
        sa.Column(
            "sequence",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("token", sa.String(36), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("subject_id", sa.String(36), nullable=False),
        sa.Column("dag_id", sa.String(250)),
        sa.Column("run_id", sa.String(250)),
        sa.Column("task_id", sa.String(250)),
        sa.Column("map_index", sa.Integer(), nullable=False, server_default="-1"),
        sa.Column("region_id", sa.String(250)),
        sa.Column("try_number", sa.Integer()),
        sa.Column("backend", sa.String(20), nullable=False),
        sa.Column("queue", sa.String(256), nullable=False),
        sa.Column("route_reason", sa.String(250), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("external_id", sa.String(512)),
        sa.Column("scheduler_job_id", sa.String(36)),
        sa.Column("claimant", sa.String(512)),
        sa.Column("hostname", sa.String(512)),
        sa.Column("issued_at", UtcDateTime(), nullable=False),
        sa.Column("submitted_at", UtcDateTime()),
        sa.Column("claimed_at", UtcDateTime()),
        sa.Column("ended_at", UtcDateTime()),
        sa.Column("settled_at", UtcDateTime()),
        sa.Column("end_reason", sa.Text()),
        sa.Column("team_name", sa.String(50)),
        sa.PrimaryKeyConstraint("sequence", name="dispatcher_launch_pkey"),
        postgresql_with={"fillfactor": 50},
    )
    op.create_index("idx_dispatcher_launch_token", "dispatcher_launch", ["token"], unique=True)
    op.create_index(
        "idx_dispatcher_launch_owner",
        "dispatcher_launch",
        ["settled_at", "scheduler_job_id", "ended_at", "sequence"],
    )
    op.create_index("idx_dispatcher_launch_subject", "dispatcher_launch", ["subject_id"])
    op.create_index(
        "idx_dispatcher_launch_task",
        "dispatcher_launch",
        ["dag_id", "run_id", "task_id", "map_index"],
        mysql_length={"dag_id": 190, "run_id": 190, "task_id": 190},
    )


def downgrade() -> None:
    op.drop_table("dispatcher_launch")
