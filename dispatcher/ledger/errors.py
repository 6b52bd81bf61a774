# SPDX-License-Identifier: Apache-2.0
"""Which errors mean that the database failed, and that the same work may be tried again later."""

from __future__ import annotations

from sqlalchemy import exc

DATABASE_ERRORS = (exc.DBAPIError, exc.TimeoutError)
"""What the driver says, and a pool of connections that has none to give."""
