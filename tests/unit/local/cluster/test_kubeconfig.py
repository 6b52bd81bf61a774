# SPDX-License-Identifier: Apache-2.0
"""The kubeconfig, as the real client reads it."""

from __future__ import annotations

import pytest
from kubernetes.client import Configuration
from kubernetes.config import load_kube_config

from dispatcher.local.cluster import kubeconfig


def test_the_real_client_finds_address_and_token(tmp_path):
    path = tmp_path / "kubeconfig"
    kubeconfig.write(path, "http://127.0.0.1:1", "secret")
    configuration = Configuration()
    load_kube_config(str(path), client_configuration=configuration)

    assert configuration.host == "http://127.0.0.1:1"
    assert set(configuration.api_key.values()) == {"Bearer secret"}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [found.name for found in tmp_path.iterdir()] == ["kubeconfig"]


def test_nothing_is_left_behind_where_it_cannot_be_written(tmp_path):
    (tmp_path / "kubeconfig").mkdir()

    with pytest.raises(OSError, match="directory"):
        kubeconfig.write(tmp_path / "kubeconfig", "http://127.0.0.1:1", "secret")
    assert [found.name for found in tmp_path.iterdir()] == ["kubeconfig"]


def test_a_cluster_finds_the_token_of_the_time_before(tmp_path):
    path = tmp_path / "kubeconfig"
    kubeconfig.write(path, "http://127.0.0.1:1", "secret")

    assert kubeconfig.token_in(path) == "secret"


@pytest.mark.parametrize("content", [None, "", "{}", "[]", '{"users": [{}]}'])
def test_a_file_without_a_token_gives_none(tmp_path, content):
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.touch(mode=0o600)
        path.write_text(content)

    assert kubeconfig.token_in(path) is None


def test_a_token_that_others_could_read_is_not_used_again(tmp_path):
    path = tmp_path / "kubeconfig"
    kubeconfig.write(path, "http://127.0.0.1:1", "secret")
    path.chmod(0o644)

    assert kubeconfig.token_in(path) is None
