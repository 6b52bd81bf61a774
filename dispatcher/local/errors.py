# SPDX-License-Identifier: Apache-2.0
"""The errors of the local mode."""

from __future__ import annotations


class LocalModeError(Exception):
    """The local stack or its tour could not do what it is for; the message is for people."""


class ComponentDiedError(LocalModeError):
    """A component ended by itself, or did not get ready in time; the message holds the end of its log."""


class InterruptedBySignalError(BaseException):
    """A signal asked this process to end.

    Not an ``Exception``: whatever catches those must not swallow it.

    :param number: which signal
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by signal {number}")
        self.number = number

    @property
    def exit_code(self) -> int:
        """The exit code by which shells know an end by this signal."""
        return 128 + self.number
