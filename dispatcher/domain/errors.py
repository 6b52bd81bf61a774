# SPDX-License-Identifier: Apache-2.0
"""The errors of the dispatcher, typed by what the caller may do about them."""

from __future__ import annotations


class DispatcherError(Exception):
    """Base class of every error that the dispatcher raises on purpose."""


class ConfigurationError(DispatcherError):
    """A setting is wrong or something that must exist does not; the message says what to do."""


class BackendError(DispatcherError):
    """A backend could not do what it was asked.

    :param message: what failed, for people; never holds a secret
    :param retry_after: seconds to wait before the next try, if the service said so
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RetryableError(BackendError):
    """It certainly did not happen, and may work later."""


class PermanentError(BackendError):
    """It certainly did not happen, and will not work when asked again."""


class AmbiguousError(BackendError):
    """It may have happened: the answer never came. Sending the same token again is safe."""


class LedgerMissingError(ConfigurationError):
    """The table of the ledger does not exist: the migration has not run."""
