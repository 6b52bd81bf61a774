# SPDX-License-Identifier: Apache-2.0
"""The pod template of a local stack."""

from __future__ import annotations

import stat

import yaml

from dispatcher.local.pod_template import with_environment, write_pod_template


def base_env(pod):
    return {variable["name"]: variable["value"] for variable in pod["spec"]["containers"][0]["env"]}


def test_without_a_source_it_is_a_plain_pod_with_the_environment(tmp_path):
    target = tmp_path / "template.yaml"

    write_pod_template(target, None, {"A": "1"})

    pod = yaml.safe_load(target.read_text())
    assert pod["spec"]["containers"][0]["name"] == "base"
    assert base_env(pod) == {"A": "1"}
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_a_given_template_keeps_everything_else(tmp_path):
    source = tmp_path / "source.yaml"
    given = {
        "spec": {
            "hostNetwork": True,
            "containers": [
                {
                    "name": "base",
                    "image": "i",
                    "env": [{"name": "A", "value": "0"}, {"name": "B", "value": "2"}],
                },
                {"name": "sidecar", "image": "s"},
            ],
        }
    }
    source.write_text(yaml.safe_dump(given))

    write_pod_template(tmp_path / "target.yaml", source, {"A": "1"})

    pod = yaml.safe_load((tmp_path / "target.yaml").read_text())
    assert base_env(pod) == {"A": "1", "B": "2"}
    assert pod["spec"]["hostNetwork"] is True
    assert pod["spec"]["containers"][1] == {"name": "sidecar", "image": "s"}


def test_the_given_pod_is_left_as_it_is():
    pod = {"spec": {"containers": [{"name": "base"}]}}

    with_environment(pod, {"A": "1"})

    assert pod == {"spec": {"containers": [{"name": "base"}]}}
