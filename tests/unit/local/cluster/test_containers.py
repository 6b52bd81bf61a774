# SPDX-License-Identifier: Apache-2.0
"""A pod's container as a command of this machine: words, environment, volumes."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path

import pytest

from dispatcher.local.cluster import containers, mounts
from dispatcher.local.cluster.containers import NotRunnableError
from dispatcher.local.cluster.mounts import Mounts, NotMountableError

SECRETS = {
    "s": {"data": {"k": base64.b64encode(b"value").decode(), "j.json": base64.b64encode(b"{}").decode()}}
}


def pod(*more, volumes=(), **container):
    spec = {"containers": [{"name": "base", "image": "none", **container}, *more], "volumes": list(volumes)}
    return {"metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "b"}}, "spec": spec}


def command(body, directory=Path("/nonesuch"), inherited=None):
    return containers.command(body, directory, SECRETS.get, inherited or {"PATH": "/bin"})


def test_python_is_this_interpreter_and_first_on_the_path():
    made = command(pod(command=["python", "-c"], args=["pass"]), inherited={"PATH": "/bin", "HOME": "/h"})

    assert made.words == (sys.executable, "-c", "pass")
    assert made.environment["PATH"] == os.pathsep.join([str(Path(sys.executable).parent), "/bin"])
    assert made.environment["HOME"] == "/h"
    assert made.directory is None


@pytest.mark.parametrize("word", ["python3", "/usr/bin/python", "sh"])
def test_other_programs_are_left_alone(word):
    assert command(pod(command=[word])).words == (word,)


def test_the_arguments_alone_are_a_command():
    assert command(pod(args=["python", "x"])).words == (sys.executable, "x")


def test_no_command_cannot_run():
    with pytest.raises(NotRunnableError, match="no command"):
        command(pod())


def test_base_is_preferred_to_the_first():
    body = pod({"name": "side", "image": "none"})
    body["spec"]["containers"].reverse()

    assert containers.choose(body)["name"] == "base"
    body["spec"]["containers"].pop()
    assert containers.choose(body)["name"] == "side"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "a"),
        ("x$(A)y$(B)", "xayb"),
        ("$(NONESUCH)", "$(NONESUCH)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$a"),
        ("$A ${A} $(A", "$A ${A} $(A"),
        ("100$$", "100$"),
    ],
)
def test_references_are_replaced(text, expected):
    assert containers.expand(text, {"A": "a", "B": "b"}) == expected


def test_variables_come_from_everywhere():
    body = pod(
        command=["x", "$(ONE)"],
        envFrom=[
            {"prefix": "S_", "secretRef": {"name": "s"}},
            {"secretRef": {"name": "no", "optional": True}},
        ],
        env=[
            {"name": "ONE", "value": "1"},
            {"name": "TWO", "value": "$(ONE)2"},
            {"name": "EMPTY"},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "NOT", "valueFrom": {"secretKeyRef": {"name": "s", "key": "x", "optional": True}}},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
            {"name": "HOSTNAME", "value": "mine"},
        ],
    )

    made = command(body, inherited={"PATH": "", "ONE": "inherited", "OTHER": "o"})

    own = {name: value for name, value in made.environment.items() if name != "PATH"}
    assert own == {
        "S_k": "value",
        "S_j.json": "{}",
        "ONE": "1",
        "TWO": "12",
        "EMPTY": "",
        "KEY": "value",
        "POD": "p",
        "LABEL": "b",
        "HOSTNAME": "mine",
        "OTHER": "o",
    }
    assert made.words == ("x", "1")


@pytest.mark.parametrize(
    ("container", "message"),
    [
        (
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k"}}}]},
            'secret "no" not found',
        ),
        (
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "x"}}}]},
            "couldn't find key x",
        ),
        (
            {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]},
            "configMapKeyRef",
        ),
        ({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x.y"}}}]}, "unsupported fieldPath"),
        ({"envFrom": [{"secretRef": {"name": "no"}}]}, 'secret "no" not found'),
        ({"envFrom": [{"configMapRef": {"name": "c"}}]}, "secrets only"),
    ],
)
def test_what_an_environment_lacks_is_told(container, message):
    with pytest.raises(NotRunnableError, match=message):
        command(pod(command=["x"], **container))


def test_a_secret_becomes_files_and_its_mount_path_is_replaced(tmp_path):
    body = pod(
        command=["cat", "/run/w/k", "--path=/run/w/j.json", "/run/w", "/run/word", "/a/run/w", "'/run/w/k'"],
        env=[{"name": "PLACE", "value": "/run/w/k"}],
        workingDir="/run/w",
        volumeMounts=[{"name": "v", "mountPath": "/run/w/"}],
        volumes=[{"name": "v", "secret": {"secretName": "s"}}],
    )

    made = command(body, tmp_path)

    place = f"{tmp_path}/volumes/v"
    assert made.words == (
        "cat",
        f"{place}/k",
        f"--path={place}/j.json",
        place,
        "/run/word",
        "/a/run/w",
        f"'{place}/k'",
    )
    assert made.environment["PLACE"] == f"{place}/k"
    assert made.directory == place
    assert Path(place, "k").read_bytes() == b"value"
    assert Path(place, "k").stat().st_mode & 0o777 == 0o600


def test_the_longest_mount_path_wins_and_a_place_is_not_replaced_again():
    places = Mounts({"/tmp": Path("/else"), "/tmp/w": Path("/tmp/x/w")})

    assert places.resolve("/tmp/w/k /tmp/k") == "/tmp/x/w/k /else/k"
    assert Mounts({}).resolve("/tmp/k") == "/tmp/k"


def test_items_and_sub_paths_choose_files(tmp_path):
    volume = {"name": "v", "secret": {"secretName": "s", "items": [{"key": "k", "path": "deep/er"}]}}
    body = pod(
        command=["/one", "/two"],
        volumeMounts=[
            {"name": "v", "mountPath": "/one", "subPath": "deep/er"},
            {"name": "v", "mountPath": "/two"},
        ],
        volumes=[volume],
    )

    made = command(body, tmp_path)

    assert made.words == (f"{tmp_path}/volumes/v/deep/er", f"{tmp_path}/volumes/v")
    assert [path.name for path in (tmp_path / "volumes/v").rglob("*") if path.is_file()] == ["er"]


def test_a_host_path_is_itself(tmp_path):
    body = pod(
        command=["/same/x", "/other/x"],
        volumeMounts=[{"name": "a", "mountPath": "/same"}, {"name": "b", "mountPath": "/other"}],
        volumes=[{"name": "a", "hostPath": {"path": "/same"}}, {"name": "b", "hostPath": {"path": "/real"}}],
    )

    assert command(body, tmp_path).words == ("/same/x", "/real/x")


@pytest.mark.parametrize("volume", [{"name": "v"}, {"name": "v", "emptyDir": {}}])
def test_an_empty_volume_is_a_directory(tmp_path, volume):
    body = pod(command=["/v"], volumeMounts=[{"name": "v", "mountPath": "/v"}], volumes=[volume])

    assert Path(command(body, tmp_path).words[0]).is_dir()


def test_an_optional_secret_may_be_missing(tmp_path):
    volume = {"name": "v", "secret": {"secretName": "no", "optional": True}}
    body = pod(command=["/v"], volumeMounts=[{"name": "v", "mountPath": "/v"}], volumes=[volume])

    assert list(Path(command(body, tmp_path).words[0]).iterdir()) == []


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"secret": {"secretName": "no"}}, 'secret "no" not found'),
        ({"secret": {"secretName": "s", "items": [{"key": "x", "path": "x"}]}}, "non-existent secret key: x"),
        ({"secret": {"secretName": "s", "items": [{"key": "k", "path": "../x"}]}}, "leads out"),
        ({"secret": {"secretName": "s", "items": [{"key": "k", "path": "/etc/x"}]}}, "leads out"),
        ({"nfs": {"server": "x"}}, "no nfs volumes"),
    ],
)
def test_what_cannot_be_mounted_is_told(tmp_path, volume, message):
    mount = {"name": "v", "mountPath": "/v"}
    body = pod(command=["x"], volumeMounts=[mount], volumes=[{"name": "v", **volume}])

    with pytest.raises(NotMountableError, match=message):
        mounts.make(body, body["spec"]["containers"][0], tmp_path, SECRETS.get)
