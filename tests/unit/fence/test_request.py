# SPDX-License-Identifier: Apache-2.0
"""Which requests the fence recognises, and what it reads from them."""

from __future__ import annotations

from uuid import UUID

import pytest
from starlette.datastructures import Headers
from starlette.routing import Mount, Route, Router

from dispatcher.fence.request import (
    CLAIMANT_LIMIT,
    Call,
    FencedRequest,
    Presentation,
    PresentationError,
    find_call,
    read_presentation,
)

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
TOKEN = "0b6ad0ee-3b0e-4b56-9d6d-0d2f1d7a9c11"
OTHER = "00000000-0000-4000-8000-000000000000"
METHODS = ("GET", "PUT", "PATCH", "POST", "DELETE")


def scope(path, method="PATCH", root_path=""):
    return {"type": "http", "method": method, "path": path, "root_path": root_path, "headers": []}


def path_of(call):
    """Where Airflow serves a fenced call, below its root path."""
    if call is Call.RUN_CALLBACK:
        return f"/execution/callbacks/{ID}/run"
    return f"/execution/task-instances/{ID}/{call.value}"


class TestFindCall:
    @pytest.mark.parametrize("call", Call)
    @pytest.mark.parametrize("root_path", ["", "/airflow", "/a/b"])
    def test_each_call_behind_any_root_path(self, call, root_path):
        assert find_call(scope(root_path + path_of(call), call.method, root_path)) == (call, UUID(ID))

    def test_a_proxy_may_have_stripped_the_root_path(self):
        path = f"/execution/task-instances/{ID}/run"

        assert find_call(scope(path, "PATCH", "/airflow")) == (Call.RUN, UUID(ID))

    @pytest.mark.parametrize("call", Call)
    def test_other_methods_are_not_fenced(self, call):
        found = [method for method in METHODS if find_call(scope(path_of(call), method))]

        assert found == [call.method]

    @pytest.mark.parametrize(
        "path",
        [
            "/",
            "",
            f"/execution/task-instances/{ID}",
            f"/execution/task-instances/{ID}/previous-successful-dagrun",
            f"/execution/task-instances/{ID}/run/",
            f"/execution/task-instances/{ID}/run-callback",
            f"/execution/callbacks/{ID}/state",
            f"/execution/callbacks/{ID}/run/",
            f"/dispatcher/callbacks/{ID}/run",
            f"/execution/task-instances/{ID}/x/run",
            "/execution/task-instances/x/run",
            f"/x/execution/task-instances/{ID}/run",
            f"/execution/xcoms/{ID}/run",
            f"/api/v2/task-instances/{ID}/run",
        ],
    )
    def test_other_paths_are_not_fenced(self, path):
        assert find_call(scope(path)) is None

    @pytest.mark.parametrize("root_path", ["", "/airflow", "/execution", "/airflow/"])
    @pytest.mark.parametrize("prefix", ["", "/airflow", "/airflow/", "/airflowx", "/execution", "//", "/x"])
    @pytest.mark.parametrize("suffix", ["", "\n", "/", "\n\n", "?", "%0a", " "])
    def test_what_starlette_routes_is_recognised(self, root_path, prefix, suffix):
        """No spelling of a path may reach Airflow's route and get past the fence."""
        path = f"{prefix}/execution/task-instances/{ID}/run{suffix}"
        inner = Router([Route("/task-instances/{task_instance_id}/run", lambda: None, methods=["PATCH"])])
        mount = Mount("/execution", inner)
        outer = scope(path, "PATCH", root_path)
        match, child = mount.matches(outer)
        reached = match.value == 2 and inner.routes[0].matches({**outer, **child})[0].value == 2

        assert find_call(outer) or not reached
        if suffix == "" and prefix == root_path:
            assert reached, "the test must see routes that are reached"

    def test_which_calls_must_fire(self):
        assert {call for call in Call if not call.must_fire} == {Call.RTIF}


class TestReadPresentation:
    def test_nothing(self):
        assert read_presentation(Headers({}), {}) == Presentation(None, by_header=False, nonce=None)

    def test_the_header(self):
        headers = Headers({"airflow-launch-token": TOKEN, "airflow-launch-claimant": "nonce/1"})

        assert read_presentation(headers, {}) == Presentation(TOKEN, by_header=True, nonce="nonce/1")

    def test_the_claim(self):
        found = read_presentation(Headers({}), {"launch_token": TOKEN})

        assert found == Presentation(TOKEN, by_header=False, nonce=None)

    def test_both(self):
        found = read_presentation(Headers({"airflow-launch-token": TOKEN}), {"launch_token": TOKEN})

        assert found == Presentation(TOKEN, by_header=True, nonce=None)

    def test_the_text_is_kept(self):
        """Tokens are compared as text, so another spelling of a UUID is another token."""
        spelt = TOKEN.upper()

        assert read_presentation(Headers({"airflow-launch-token": spelt}), {}).token == spelt
        with pytest.raises(PresentationError, match="not the one in the JWT"):
            read_presentation(Headers({"airflow-launch-token": spelt}), {"launch_token": TOKEN})

    @pytest.mark.parametrize("token", ["", "x", TOKEN + "0", TOKEN[:-1], f" {TOKEN}", f"{TOKEN}\n", "0" * 36])
    def test_a_malformed_token(self, token):
        with pytest.raises(PresentationError, match="is not a UUID"):
            read_presentation(Headers({"airflow-launch-token": token}), {})
        with pytest.raises(PresentationError, match="is not a UUID"):
            read_presentation(Headers({}), {"launch_token": token})

    @pytest.mark.parametrize("claim", [1, 1.5, True, [], [TOKEN], {}, {"a": TOKEN}])
    def test_a_claim_that_is_no_text(self, claim):
        with pytest.raises(PresentationError, match="in the JWT is not a UUID"):
            read_presentation(Headers({}), {"launch_token": claim})

    def test_a_difference(self):
        with pytest.raises(PresentationError, match="not the one in the JWT"):
            read_presentation(Headers({"airflow-launch-token": TOKEN}), {"launch_token": OTHER})

    @pytest.mark.parametrize("name", ["airflow-launch-token", "airflow-launch-claimant"])
    def test_a_header_sent_twice(self, name):
        headers = Headers(raw=[(name.encode(), TOKEN.encode()), (name.encode(), TOKEN.encode())])

        with pytest.raises(PresentationError, match="more than once"):
            read_presentation(headers, {})

    def test_no_message_repeats_what_was_sent(self):
        for headers in ({"airflow-launch-token": "marked"}, {"airflow-launch-claimant": "marked marked"}):
            with pytest.raises(PresentationError) as caught:
                read_presentation(Headers(headers), {})
            assert "marked" not in str(caught.value)


class TestClaimant:
    @staticmethod
    def request(body, nonce=None):
        presented = Presentation(TOKEN, by_header=nonce is not None, nonce=nonce)
        return FencedRequest(Call.RUN, UUID(ID), presented, required=False, body=bytearray(body))

    def test_the_nonce_comes_first(self):
        assert self.request(b"", nonce="mine").claimant() == "nonce:mine"

    def test_the_process(self):
        body = b'{"hostname": "h", "unixname": "u", "pid": 7, "state": "running"}'

        assert self.request(body).claimant() == "process:h|u|7"

    def test_the_start_of_a_callback_tells_no_process(self):
        """Each call without a nonce is another claimant: none may pass as the repeat of another."""
        presented = Presentation(TOKEN, by_header=False, nonce=None)
        request = FencedRequest(Call.RUN_CALLBACK, UUID(ID), presented, required=False)

        assert request.claimant().startswith("process:")
        assert request.claimant() != request.claimant()

    @pytest.mark.parametrize("body", [b"", b"x", b"[]", b"null", b'{"hostname": "h", "pid": 7}', b"\xff"])
    def test_no_process(self, body):
        with pytest.raises(PresentationError, match="does not tell"):
            self.request(body).claimant()

    def test_a_name_that_the_ledger_has_no_room_for(self):
        body = b'{"hostname": "%s", "unixname": "u", "pid": 7}' % (b"h" * CLAIMANT_LIMIT)

        with pytest.raises(PresentationError, match="too long"):
            self.request(body).claimant()
