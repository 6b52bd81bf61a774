# SPDX-License-Identifier: Apache-2.0
"""What is known of pods, while answers and watches overtake each other."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from dispatcher.backends.base import Artefact, Observation
from dispatcher.backends.kubernetes.identity import PodIdentity
from dispatcher.backends.kubernetes.table import PodTable
from dispatcher.backends.kubernetes.waiting import Waiting
from dispatcher.domain.workload import WorkloadKind

UNSEEN = PodIdentity("token", WorkloadKind.TASK, "ns", "pod-token", "")
FIRST = replace(UNSEEN, uid="uid-1")
SECOND = replace(UNSEEN, uid="uid-2")
FAILED = Observation(token="token", ok=False, reason="failed")
SUCCEEDED = Observation(token="token", ok=True)
GONE = Observation(token="token", ok=False, reason="deleted", gone=True)


@pytest.fixture
def table() -> PodTable:
    return PodTable(lambda namespace: namespace)


def send(table: PodTable, identity: PodIdentity = FIRST) -> None:
    table.attempted(UNSEEN, secret=False)
    table.looked_at(identity)


def relist(table: PodTable, *tokens: str) -> None:
    places = {pod.identity.external_id for token in tokens for pod in table.find(token)}
    table.listed("ns", table.existing("ns"), places, begun=0.0)


def test_an_ending_is_told_until_it_is_forgotten(table):
    send(table)
    assert table.endings() == []
    table.seen(FIRST, None)
    assert table.endings() == []
    table.seen(FIRST, SUCCEEDED)
    assert table.endings() == [SUCCEEDED]
    assert table.endings() == [SUCCEEDED]
    table.forget("token")
    assert table.endings() == []
    table.seen(FIRST, SUCCEEDED)
    assert table.endings() == []


def test_an_ending_is_known_before_the_answer_to_the_creation(table):
    table.attempted(UNSEEN, secret=False)
    table.seen(FIRST, SUCCEEDED)
    table.looked_at(FIRST)
    assert table.endings() == [SUCCEEDED]


def test_an_ending_is_told_although_the_answer_never_came(table):
    table.attempted(UNSEEN, secret=False)
    table.seen(FIRST, FAILED)
    assert table.endings() == [FAILED]


def test_the_first_ending_stays_when_the_pod_is_deleted_afterwards(table):
    send(table)
    table.seen(FIRST, SUCCEEDED)
    table.seen(FIRST, GONE, deleted=True)
    assert table.endings() == [SUCCEEDED]


def test_a_deletion_seen_before_the_answer_to_the_creation(table):
    table.attempted(UNSEEN, secret=False)
    table.seen(FIRST, None)
    table.seen(FIRST, GONE, deleted=True)
    table.looked_at(FIRST)
    assert table.endings() == [GONE]


def test_what_left_the_watch_is_missing_until_it_is_looked_for(table):
    send(table)
    table.listed("ns", {}, [], begun=0.0)
    table.seen(FIRST, None, deleted=True)
    assert table.endings() == []
    assert table.missing() == [FIRST]


def test_a_new_pod_of_the_name_voids_the_ending_of_the_old_one(table):
    send(table)
    table.seen(FIRST, FAILED)
    table.looked_at(SECOND)
    assert table.endings() == []


@pytest.mark.parametrize("deleted", [False, True])
def test_a_watch_that_lags_says_nothing_of_the_new_pod(table, deleted):
    send(table, SECOND)
    table.seen(FIRST, FAILED, deleted=deleted)
    assert table.endings() == []
    table.seen(SECOND, SUCCEEDED)
    assert table.endings() == [SUCCEEDED]


def test_a_pod_that_somebody_else_made_again_is_followed(table):
    send(table)
    table.seen(FIRST, None)
    table.seen(SECOND, FAILED)
    assert table.endings() == [FAILED]
    table.seen(FIRST, GONE, deleted=True)
    assert table.endings() == [FAILED]


def test_a_read_shows_the_ending_ahead_of_the_watch(table):
    table.attempted(UNSEEN, secret=False)
    table.looked_at(FIRST, FAILED)
    assert table.endings() == [FAILED]
    table.seen(FIRST, None)
    assert table.endings() == [FAILED]


def test_pods_of_others_are_not_told_until_they_are_taken_up(table):
    table.seen(FIRST, SUCCEEDED)
    assert table.endings() == []
    table.take_up([Artefact("token", WorkloadKind.TASK)])
    assert table.endings() == [SUCCEEDED]


def test_pods_of_others_are_forgotten_with_their_deletion(table):
    table.seen(FIRST, SUCCEEDED)
    table.seen(FIRST, SUCCEEDED, deleted=True)
    assert table.find("token") == []


def test_pods_of_others_are_forgotten_with_the_list_that_lacks_them(table):
    table.seen(FIRST, SUCCEEDED)
    relist(table)
    assert table.find("token") == []


def test_what_was_taken_up_without_a_place_is_found_when_it_is_seen(table):
    table.take_up([Artefact("token", WorkloadKind.TASK)])
    relist(table)
    assert table.missing() == []
    table.seen(FIRST, SUCCEEDED)
    assert table.endings() == [SUCCEEDED]


def test_what_is_forgotten_before_it_was_seen_is_not_told(table):
    table.take_up([Artefact("token", WorkloadKind.TASK)])
    table.forget("token")
    table.seen(FIRST, SUCCEEDED)
    assert table.endings() == []


def test_what_the_list_lacks_is_missing(table):
    send(table)
    assert table.missing() == []
    relist(table, "token")
    assert table.missing() == []
    relist(table)
    assert table.missing() == [FIRST]
    assert table.endings() == []
    table.gone(FIRST)
    (told,) = table.endings()
    assert told.gone
    assert told.claimant == "nonce:uid-1/"
    assert table.missing() == []


def test_what_was_created_while_the_list_was_made_is_not_missing(table):
    before = table.existing("ns")
    send(table)
    table.listed("ns", before, [], begun=0.0)
    assert table.missing() == []


def test_what_ended_is_not_missing(table):
    send(table)
    table.seen(FIRST, SUCCEEDED)
    relist(table)
    assert table.missing() == []
    assert table.endings() == [SUCCEEDED]


def test_what_was_never_confirmed_is_not_missing(table):
    table.attempted(UNSEEN, secret=False)
    relist(table)
    assert table.missing() == []


def test_what_was_taken_up_is_missing_only_once_its_scope_was_listed(table):
    table.take_up([Artefact("token", WorkloadKind.TASK, "ns/pod-token")])
    assert table.missing() == []
    table.listed("other", {}, [], begun=0.0)
    assert table.missing() == []
    table.listed("ns", {}, [], begun=0.0)
    assert table.missing() == [UNSEEN]
    table.gone(UNSEEN)
    (told,) = table.endings()
    assert told.gone
    assert told.claimant is None


def test_what_is_found_by_name_is_not_missing(table):
    table.take_up([Artefact("token", WorkloadKind.TASK, "ns/pod-token")])
    table.listed("ns", {}, [], begun=0.0)
    table.looked_at(FIRST)
    assert table.missing() == []
    table.gone(UNSEEN)
    assert table.endings() == []


def test_a_missing_pod_found_by_name_is_missing_again_after_the_next_list(table):
    send(table)
    relist(table)
    table.looked_at(FIRST)
    assert table.missing() == []
    relist(table)
    assert table.missing() == [FIRST]


def test_a_list_of_one_scope_says_nothing_of_another(table):
    send(table)
    table.listed("other", table.existing("other"), [], begun=0.0)
    assert table.missing() == []


def test_a_secret_is_remembered(table):
    table.attempted(UNSEEN, secret=True)
    table.looked_at(FIRST)
    table.seen(FIRST, None)
    (known,) = table.find("token")
    assert known.secret


SIBLING = replace(UNSEEN, name="by-hand", uid="uid-9")


def test_two_pods_of_one_token_are_kept_apart(table):
    send(table)
    table.seen(FIRST, SUCCEEDED)
    table.seen(SIBLING, None)
    (told,) = table.endings()
    assert (told.ok, told.outlived) == (True, True)
    table.seen(SIBLING, FAILED)
    assert sorted(one.ok for one in table.endings()) == [False, True]
    assert not any(one.outlived for one in table.endings())
    table.seen(SIBLING, FAILED, deleted=True)
    table.forget("token")
    assert [pod.identity for pod in table.find("token")] == [FIRST]


def test_what_somebody_waits_for_is_no_stray(table):
    send(table)
    table.seen(FIRST, SUCCEEDED)
    assert table.strays() == []


def test_a_stray_says_who_sent_it_and_how_far_it_has_come(table):
    table.seen(FIRST, None, waiting=Waiting(datetime.now(tz=UTC)), sender="7")
    table.seen(SIBLING, None)
    other = replace(UNSEEN, name="third", uid="uid-3")
    table.seen(other, FAILED)
    assert [(one.artefact.external_id, one.progress.value, one.sender) for one in table.strays()] == [
        ("ns/pod-token", "waiting", "7"),
        ("ns/by-hand", "running", None),
        ("ns/third", "ended", None),
    ]


def test_what_is_being_taken_away_is_no_stray_but_another_pod_of_its_name_is(table):
    table.seen(FIRST, SUCCEEDED)
    table.leaves("ns/pod-token")
    table.seen(FIRST, SUCCEEDED)
    assert table.strays() == []
    table.seen(SECOND, None)
    (stray,) = table.strays()
    assert stray.artefact.external_id == "ns/pod-token"


def test_what_was_only_read_by_name_is_no_stray_yet(table):
    send(table)
    table.forget("token")
    assert table.strays() == []
    table.seen(FIRST, None)
    assert len(table.strays()) == 1
