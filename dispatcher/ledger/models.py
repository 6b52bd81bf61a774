# SPDX-License-Identifier: Apache-2.0
"""The table ``dispatcher_launch``: one row per launch, with no foreign keys to Airflow's tables."""

from __future__ import annotations

from datetime import datetime

from airflow.utils.sqlalchemy import UtcDateTime
from sqlalchemy import BigInteger, Index, Integer, MetaData, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING_CONVENTION = {
    "ix": "idx_%(table_name)s_%(column_0_N_name)s",
    "uq": "%(table_name)s_%(column_0_N_name)s_uq",
    "pk": "%(table_name)s_pkey",
}

TOKEN_LENGTH = 36
ID_LENGTH = 250


class LedgerBase(DeclarativeBase):
    """The ledger's own declarative base: Airflow's metadata must not see its table."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)


class LaunchRow(LedgerBase):
    """One launch. ``sequence`` orders launches; times are for people."""

    __tablename__ = "dispatcher_launch"

    sequence: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    token: Mapped[str] = mapped_column(String(TOKEN_LENGTH), nullable=False)
    kind: Mapped[str] = mapped_column(String(20), nullable=False)
    subject_id: Mapped[str] = mapped_column(String(TOKEN_LENGTH), nullable=False)
    dag_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    run_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    task_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    map_index: Mapped[int] = mapped_column(Integer, nullable=False, default=-1, server_default="-1")
    region_id: Mapped[str | None] = mapped_column(String(ID_LENGTH))
    try_number: Mapped[int | None] = mapped_column(Integer)
    backend: Mapped[str] = mapped_column(String(20), nullable=False)
    queue: Mapped[str] = mapped_column(String(256), nullable=False)
    route_reason: Mapped[str] = mapped_column(String(250), nullable=False)
    state: Mapped[str] = mapped_column(String(20), nullable=False)
    external_id: Mapped[str | None] = mapped_column(String(512))
    scheduler_job_id: Mapped[str | None] = mapped_column(String(36))
    claimant: Mapped[str | None] = mapped_column(String(512))
    hostname: Mapped[str | None] = mapped_column(String(512))
    issued_at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)
    submitted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    claimed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    settled_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    end_reason: Mapped[str | None] = mapped_column(Text)
    team_name: Mapped[str | None] = mapped_column(String(50))

    __table_args__ = (
        Index("idx_dispatcher_launch_token", "token", unique=True),
        # Unsettled ones first: the loop asks for no others, and they stay few however many rows have ended.
        # Without the state, which every step changes: PostgreSQL writes no index entries then (a HOT update),
        # as long as the row's page has room, which the fill factor leaves. That is a quarter of the WAL.
        # What ended_at costs of that, at the end, it saves in each turn of the loop: what has ended is
        # found without reading what has not. That is read in pages, by the sequence.
        Index("idx_dispatcher_launch_owner", "settled_at", "scheduler_job_id", "ended_at", "sequence"),
        Index("idx_dispatcher_launch_subject", "subject_id"),
        Index(
            "idx_dispatcher_launch_task",
            "dag_id",
            "run_id",
            "task_id",
            "map_index",
            mysql_length={"dag_id": 190, "run_id": 190, "task_id": 190},
        ),
        {"postgresql_with": {"fillfactor": 50}},
    )
