# SPDX-License-Identifier: Apache-2.0
"""What the client's connection pool is told through attributes that its library could rename."""

from __future__ import annotations

import ssl

import pytest
from kubernetes.client import ApiClient, Configuration

from dispatcher.backends.kubernetes.client import load_certificates_once


def contexts(**settings: object) -> set[ssl.SSLContext | None]:
    """Return the TLS contexts of two new connections of a client."""
    configuration = Configuration(host="https://cluster.invalid")
    for name, value in settings.items():
        setattr(configuration, name, value)
    client = ApiClient(configuration=configuration)
    load_certificates_once(client)
    pool = client.rest_client.pool_manager.connection_from_url("https://cluster.invalid")
    return {pool.ConnectionCls("cluster.invalid", **pool.conn_kw).ssl_context for _ in range(2)}


@pytest.mark.parametrize("verify", [True, False])
def test_connections_share_the_certificates_of_the_system(verify):
    (shared,) = contexts(verify_ssl=verify)
    assert isinstance(shared, ssl.SSLContext)
    assert shared.verify_mode is (ssl.CERT_REQUIRED if verify else ssl.CERT_NONE)


@pytest.mark.parametrize("own", [{"ssl_ca_cert": "ca.pem"}, {"cert_file": "client.pem"}])
def test_certificates_of_the_clusters_own_are_read_with_each_connection(own):
    assert contexts(**own) == {None}
