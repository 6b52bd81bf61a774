# SPDX-License-Identifier: Apache-2.0
"""Signals become one exception, and wait where they would do harm."""

from __future__ import annotations

import signal

import pytest

from dispatcher.local.errors import InterruptedBySignalError
from dispatcher.local.interrupts import Interrupts


@pytest.fixture
def interrupts():
    interrupts = Interrupts()
    with interrupts.caught():
        yield interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_raised_where_the_program_is(interrupts, number):
    with pytest.raises(InterruptedBySignalError) as caught:
        signal.raise_signal(number)

    assert caught.value.number == number
    assert caught.value.exit_code == 128 + number


def test_a_signal_waits_for_the_end_of_a_held_block(interrupts):
    done = []

    def block():
        with interrupts.held():
            signal.raise_signal(signal.SIGTERM)
            done.append("to its end")

    with pytest.raises(InterruptedBySignalError):
        block()
    assert done == ["to its end"]


def test_a_held_block_within_another_does_not_let_the_signal_out(interrupts):
    done = []

    def block():
        with interrupts.held():
            with interrupts.held():
                signal.raise_signal(signal.SIGTERM)
            done.append("inner block ended")

    with pytest.raises(InterruptedBySignalError):
        block()
    assert done == ["inner block ended"]


def test_later_signals_do_not_disturb_the_end(interrupts):
    with pytest.raises(InterruptedBySignalError) as caught:
        signal.raise_signal(signal.SIGINT)

    signal.raise_signal(signal.SIGTERM)
    with interrupts.held():
        signal.raise_signal(signal.SIGINT)
    assert caught.value.number == signal.SIGINT


def test_the_handlers_of_before_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts().caught():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
