# SPDX-License-Identifier: Apache-2.0
"""The calls to the API server, in raw JSON and with typed errors.

The client is the documented one, set up by the Kubernetes provider from ``[kubernetes_executor]``. Answers
are not turned into its models, which costs many times what the call does.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from pkgutil import resolve_name
from ssl import CERT_NONE, CERT_REQUIRED
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.exceptions import AirflowConfigException
from airflow.providers.cncf.kubernetes.kube_client import get_kube_client
from kubernetes.client import ApiClient, CoreV1Api, V1DeleteOptions
from kubernetes.client.exceptions import ApiException
from urllib3 import Retry
from urllib3.util.ssl_ import create_urllib3_context

from dispatcher.backends.kubernetes.diagnosis import BASE_CONTAINER
from dispatcher.backends.kubernetes.errors import AlreadyExistsError, NotFoundError, classify
from dispatcher.backends.kubernetes.options import SECTION
from dispatcher.backends.kubernetes.pods import WORKLOAD_FILE
from dispatcher.backends.kubernetes.templates import one_line
from dispatcher.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dispatcher.backends.kubernetes.options import ClusterOptions, Scope

PAGE_SIZE = 200
"""Pods in one page of a list."""

METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
"""An answer that repeats the pod is read and thrown away; its metadata is all that counts."""


def open_cluster(conf: Any, options: ClusterOptions, *, connections: int, request_seconds: float) -> Cluster:
    """Return a client of the cluster that the configuration names; nothing is asked of the cluster yet.

    :param conf: Airflow's configuration, team-aware where an executor passes its own
    :param options: the rest of ``[kubernetes_executor]``
    :param connections: calls at the same time
    :param request_seconds: time-out of one call where the options name none
    :raises ConfigurationError: ``client_factory`` makes no client, or ``in_cluster`` is no truth value
    :raises BackendError: there is no configuration that can be used
    """
    args = {"_request_timeout": request_seconds, **options.request_args}
    if path := conf.get(SECTION, "client_factory", fallback=None):
        api = _made_by(path)
        pool = api.api_client.rest_client.pool_manager.connection_pool_kw
        pool["maxsize"] = max(connections, pool.get("maxsize") or 0)
        return Cluster(api, args)
    try:
        in_cluster = conf.getboolean(SECTION, "in_cluster")
    except (AirflowConfigException, ValueError) as exc:
        raise ConfigurationError(f"[{SECTION}] cannot be used: {exc}") from exc
    with _typed_errors():
        loaded = get_kube_client(
            in_cluster=in_cluster,
            cluster_context=conf.get(SECTION, "cluster_context", fallback=None) or None,
            config_file=conf.get(SECTION, "config_file", fallback=None) or None,
        )
        configuration = loaded.api_client.configuration
        # Calls are repeated by the dispatcher, with a check of the launch in between and never in a sleep.
        configuration.retries = Retry(0)
        configuration.connection_pool_maxsize = connections
        api = CoreV1Api(ApiClient(configuration=configuration))
        load_certificates_once(api.api_client)
    return Cluster(api, args, direct=set(args) == {"_request_timeout"})


def _made_by(path: str) -> CoreV1Api:
    """Return the client that the deployment's own factory makes, as the stock executor uses it."""
    try:
        api = resolve_name(path)()
    except Exception as exc:
        raise ConfigurationError(f"[{SECTION}] client_factory {path} failed: {one_line(exc)}") from exc
    if not isinstance(api, CoreV1Api):
        raise ConfigurationError(
            f"[{SECTION}] client_factory {path} must return a CoreV1Api, not a {type(api).__name__}"
        )
    return api


def load_certificates_once(client: ApiClient) -> None:
    """Let all connections share the system's certificates.

    Each would load them anew otherwise, which takes some 25 ms of a processor: with all connections of a
    burst that is a second in which nothing is created. A CA or a client certificate of the cluster's own is
    read with each connection, so that a renewed one is used.

    :param client: none of its connections is open yet
    """
    configuration = client.configuration
    if configuration.ssl_ca_cert or configuration.cert_file or configuration.proxy:
        return
    context = create_urllib3_context(cert_reqs=CERT_REQUIRED if configuration.verify_ssl else CERT_NONE)
    if configuration.verify_ssl:
        context.load_default_certs()
    client.rest_client.pool_manager.connection_pool_kw["ssl_context"] = context


class Cluster:
    """Calls of one API server; may be used by several threads.

    Every method raises a ``BackendError`` that says whether the call may be repeated.

    :param api: the client
    :param request_args: arguments of every call that is no watch
    :param direct: pods may be created by the client's general call, which costs less than its own method
    """

    def __init__(self, api: CoreV1Api, request_args: Mapping[str, Any], *, direct: bool = False) -> None:
        self._api = api
        self._args = {**request_args, "_preload_content": False}
        self._direct = direct

    @property
    def address(self) -> str:
        """The API server's address, without credentials."""
        parts = urlsplit(str(self._api.api_client.configuration.host))
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def close(self) -> None:
        """Close idle connections."""
        self._api.api_client.rest_client.pool_manager.clear()
        self._api.api_client.close()

    def create_pod(self, namespace: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create a pod and return it, or of it no more than its metadata.

        :param body: the pod as plain JSON
        :raises AlreadyExistsError: a pod of this name is there
        """
        with _typed_errors():
            if not self._direct:
                return _read(self._api.create_namespaced_pod(namespace, body, **self._args))
            client = self._api.api_client
            # The body is plain JSON already: what the client's own method looks for in it is not there.
            headers = {"Accept": METADATA_ONLY, "Content-Type": "application/json", **client.default_headers}
            client.update_params_for_auth(headers, [], ["BearerToken"])
            url = f"{client.configuration.host}/api/v1/namespaces/{quote(namespace)}/pods"
            return _read(client.request("POST", url, headers=headers, body=body, **self._args))

    def read_pod(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return a pod; None if there is none."""
        try:
            with _typed_errors():
                return _read(self._api.read_namespaced_pod(name, namespace, **self._args))
        except NotFoundError:
            return None

    def delete_pod(self, namespace: str, name: str, delete_options: Mapping[str, Any]) -> None:
        """Ask for the deletion of a pod; one that is not there is no error.

        :param delete_options: arguments of ``V1DeleteOptions``
        """
        options = V1DeleteOptions(**delete_options)
        try:
            with _typed_errors():
                _read(self._api.delete_namespaced_pod(name, namespace, body=options, **self._args))
        except NotFoundError:
            return

    def label_pod(
        self,
        namespace: str,
        name: str,
        labels: Mapping[str, str],
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Set labels of a pod, and annotations if need be; one that is not there is no error."""
        body = {"metadata": {"labels": dict(labels), "annotations": dict(annotations or {})}}
        try:
            with _typed_errors():
                _read(self._api.patch_namespaced_pod(name, namespace, body, **self._args))
        except NotFoundError:
            return

    def pod_pages(self, scope: Scope, selector: str) -> Iterator[tuple[list[dict[str, Any]], str]]:
        """Yield the pods of a scope that a label selector selects, by pages, and the version to watch from.

        A page is gone when the next one is asked for, so that a large namespace costs no more than one page.

        :raises ExpiredError: the list took too long; begin anew
        """
        following: str | None = None
        while True:
            page = self._list_page(scope, selector, PAGE_SIZE, following)
            metadata = page["metadata"]
            following = metadata.get("continue") or None
            yield page.pop("items", None) or [], metadata["resourceVersion"]
            if following is None:
                return

    def probe(self, scope: Scope) -> None:
        """Ask for one pod of a scope: whether the API server answers, knows us and lets us list."""
        self._list_page(scope, "", 1, None)

    def _list_page(self, scope: Scope, selector: str, limit: int, following: str | None) -> dict[str, Any]:
        args: dict[str, Any] = {**self._args, "label_selector": selector, "limit": limit}
        if following is not None:
            args["_continue"] = following
        with _typed_errors():
            if scope is None:
                return _read(self._api.list_pod_for_all_namespaces(**args))
            return _read(self._api.list_namespaced_pod(scope, **args))

    def watch_pods(
        self, scope: Scope, selector: str, version: str, *, seconds: int, silence: float, connect: float
    ) -> Any:
        """Open a watch and return the HTTP response, whose body is one JSON event per line.

        :param version: the resource version to go on from
        :param seconds: when the server ends the watch
        :param silence: seconds without a byte after which the connection is taken for dead
        :param connect: seconds that connecting may take
        :raises ExpiredError: the version is too old
        """
        args: dict[str, Any] = {
            "watch": True,
            "label_selector": selector,
            "resource_version": version,
            "allow_watch_bookmarks": True,
            "timeout_seconds": seconds,
            "_preload_content": False,
            "_request_timeout": (connect, silence),
        }
        with _typed_errors():
            if scope is None:
                return self._api.list_pod_for_all_namespaces(**args)
            return self._api.list_namespaced_pod(scope, **args)

    def put_secret(self, pod: Mapping[str, Any], payload: str, labels: Mapping[str, str]) -> None:
        """Make the Secret of a pod hold its workload, and belong to it.

        A Secret that is there already may be left from an earlier pod of the name: it is taken over.

        :param pod: the pod as it was created; the Secret gets its name, and ends with it
        :param payload: the workload
        :param labels: labels of the Secret
        """
        metadata = pod["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": metadata["uid"]}
        body = {
            "metadata": {"name": name, "labels": dict(labels), "ownerReferences": [owner]},
            "type": "Opaque",
            "stringData": {WORKLOAD_FILE: payload},
        }
        try:
            self._create_secret(namespace, body)
        except AlreadyExistsError:
            try:
                with _typed_errors():
                    _read(self._api.patch_namespaced_secret(name, namespace, body, **self._args))
            except NotFoundError:
                # Gone with the earlier pod, between the two calls.
                self._create_secret(namespace, body)

    def _create_secret(self, namespace: str, body: Mapping[str, Any]) -> None:
        with _typed_errors():
            _read(self._api.create_namespaced_secret(namespace, body, **self._args))

    def delete_secret(self, namespace: str, name: str) -> None:
        """Delete a Secret; one that is not there is no error."""
        try:
            with _typed_errors():
                _read(self._api.delete_namespaced_secret(name, namespace, **self._args))
        except NotFoundError:
            return

    def open_log(self, namespace: str, name: str, lines: int) -> Any:
        """Return the HTTP response with the last lines that the container ``base`` wrote; it is to be closed.

        :param lines: how many
        :raises NotFoundError: there is no such pod
        :raises BadRequestError: the container has not started
        """
        with _typed_errors():
            return self._api.read_namespaced_pod_log(
                name, namespace, container=BASE_CONTAINER, tail_lines=lines, **self._args
            )


@contextmanager
def _typed_errors() -> Iterator[None]:
    try:
        yield
    except Exception as exc:
        error = classify(exc)
        if isinstance(exc, ApiException):
            # It may quote the request, and with it the workload's JWT; the message has what is needed.
            exc.body = None
        raise error from exc


def _read(response: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(_body(response))
    return answer


def _body(response: Any) -> bytes:
    try:
        body: bytes = response.data
    finally:
        response.release_conn()
    return body
