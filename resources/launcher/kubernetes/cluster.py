"""Client of the Kubernetes API for the launcher: JSON documents in and out, retries, errors as types.

Here: connecting, a few verbs on a few kinds, the server's clock, raw log streams. Not here: writing documents
(attempt_objects) and interpreting them (classify).
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (the official client has no annotations)

import json
import os
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar, cast

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from resources.clocks import time_told
from resources.job.errors import ClusterRefused, ClusterUnavailable, JobSetsMissing, TrainJobsMissing
from resources.retry import patiently

Document = dict[str, Any]
"""JSON document of an API object."""
Kind = Literal[
    "job",
    "pod",
    "service",
    "lease",
    "event",
    "network_policy",
    "secret",
    "jobset",
    "trainjob",
    "trainingruntime",
]
JOBSETS = ("jobset.x-k8s.io", "v1alpha2")
"""Group and version of JobSets."""
TRAINJOBS = ("trainer.kubeflow.org", "v1alpha1")
"""Group and version of Kubeflow Trainer's TrainJobs and TrainingRuntimes."""
_CUSTOM: dict[Kind, tuple[str, str]] = {
    "jobset": JOBSETS,
    "trainjob": TRAINJOBS,
    "trainingruntime": TRAINJOBS,
}
"""Group and version of each kind that is not built in."""
_WORKLOADS = ("kueue.x-k8s.io", "v1beta2")
"""Group and version of Kueue's Workloads, since Kueue 0.15."""
Result = TypeVar("Result")

CONNECT_SECONDS, READ_SECONDS = 5.0, 30.0
"""Timeouts of one request in seconds: to connect, and to receive an answer."""
WATCH_SECONDS = 240
"""Seconds after which the server ends a watch, which is then opened again. 200 trainings have 400 watches."""
SILENCE_SECONDS = 100.0
"""Longest silence of a watch, whose server sends a bookmark each minute. After a longer one its connection is dead,
though nobody closed it: a node or a balancer was lost."""
_BOOKMARK = b'{"type":"BOOKMARK"'
_LONGEST_PAUSE = 2.0
_DELETED_AT_ONCE = 100
"""Pods deleted per request, few enough for the server to answer within the timeout."""
_LOGIN_SECONDS = 10.0
"""Seconds of retries after a 401 if no request has succeeded yet. Then the credentials are wrong, not expired."""
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _CONFLICT = 401, 403, 404, 409
_TIMEOUT, _GONE, _TOO_MANY, _INTERNAL = 408, 410, 429, 500
_PASSING = (_UNAUTHORIZED, _TIMEOUT, _GONE, _TOO_MANY)
"""Statuses after which a retry may succeed: with a renewed token, from another server, or with a new list."""


class AlreadyThere(Exception):
    """An object of this name exists."""


class Outdated(Exception):
    """Another client changed the object after it was read."""


class Cluster:
    """One namespace of one cluster. Safe for threads.

    A request that fails for a passing reason (connection, timeout, 401, 408, 410, 429, 5xx) is retried for
    `patience_seconds`, then raises `ClusterUnavailable`. `ClusterRefused` names a request that the server refuses.
    After a 401 the credentials are read again: tokens are replaced while a training runs.
    """

    def __init__(self, namespace: str, context: str | None = None, patience_seconds: float = 300.0) -> None:
        self.namespace = namespace
        self._patience = patience_seconds
        self._clock = timedelta()
        self._context = context
        self._was_let_in = False
        api, self.where = _log_in(context)
        core, batch = client.CoreV1Api(api), client.BatchV1Api(api)
        self._core = core
        self._custom = client.CustomObjectsApi(api)
        self._version = client.VersionApi(api)
        self._authorization = client.AuthorizationV1Api(api)
        self._apis: dict[str, Any] = {
            "job": batch,
            "pod": core,
            "service": core,
            "event": core,
            "secret": core,
            "lease": client.CoordinationV1Api(api),
            "network_policy": client.NetworkingV1Api(api),
        }
        self._all = (*self._apis.values(), self._custom, self._version, self._authorization)

    def create(self, kind: Kind, body: Document) -> Document:
        """Create an object; return its document. Raise `AlreadyThere`, or `ClusterRefused` without the namespace."""
        try:
            return self._call(self._verb("create", kind), self.namespace, body)
        except _Absent as error:
            if kind in _CUSTOM and "namespaces" not in str(error):
                raise self._missing(kind, error) from error
            raise ClusterRefused(
                f"cannot create objects in namespace {self.namespace} of {self.where} ({error}): create the namespace "
                "(deployment/helm), or correct ML_ASSETS_KUBERNETES_NAMESPACE"
            ) from error

    def get(self, kind: Kind, name: str) -> Document | None:
        """Return an object, or None if it does not exist."""
        try:
            return self._call(self._verb("read", kind), name, self.namespace)
        except _Absent:
            return None

    def list(self, kind: Kind, labels: str = "", fields: str = "") -> "list[Document]":
        """Return all objects that match these label and field selectors. Raise `JobSetsMissing` or
        `TrainJobsMissing`.
        """
        try:
            found = self._call(
                self._verb("list", kind), self.namespace, label_selector=labels, field_selector=fields
            )
        except _Absent as error:  # only a kind that is not built in can be missing
            raise self._missing(kind, error) from error
        return cast("list[Document]", found["items"])

    def events(self, uid: str) -> "list[Document]":
        """Return the events of the object with this uid."""
        return self.list("event", fields=f"involvedObject.uid={uid}")

    def workloads(self, labels: str) -> "list[Document]":
        """Return Kueue's Workloads with these labels; none if the cluster has no Kueue."""
        list_of = self._custom.list_namespaced_custom_object
        try:
            found = self._call(list_of, *_WORKLOADS, self.namespace, "workloads", label_selector=labels)
        except _Absent:
            return []
        return cast("list[Document]", found["items"])

    def change_workload(self, name: str, change: Document) -> None:
        """Merge `change` into a Workload. Do nothing if it does not exist."""
        with suppress(_Absent):
            self._call(
                self._custom.patch_namespaced_custom_object,
                *_WORKLOADS,
                self.namespace,
                "workloads",
                name,
                change,
                _content_type="application/merge-patch+json",
            )

    def replace(self, kind: Kind, body: Document) -> Document | None:
        """Replace an object by a changed document; return None if it does not exist. Raise `Outdated`."""
        try:
            return self._call(self._verb("replace", kind), body["metadata"]["name"], self.namespace, body)
        except _Absent:
            return None
        except AlreadyThere as error:
            raise Outdated(str(error)) from error

    def delete(
        self,
        kind: Kind,
        name: str,
        *,
        grace_seconds: int | None = None,
        version: str | None = None,
        after_dependents: bool = False,
    ) -> None:
        """Delete an object and its dependents. Do nothing if it does not exist.

        With `version`, delete only that resource version, else raise `Outdated`. `after_dependents`: the object stays,
        with a time of deletion, until its dependents are gone.
        """
        body: Document = {"propagationPolicy": "Foreground" if after_dependents else "Background"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        if version is not None:
            body["preconditions"] = {"resourceVersion": version}
        try:
            self._call(self._verb("delete", kind), name, self.namespace, body=body)
        except _Absent:
            pass
        except AlreadyThere as error:
            raise Outdated(str(error)) from error

    def delete_pods(self, labels: str, grace_seconds: int) -> None:
        """Delete all pods with these labels, up to 100 per request."""
        end = time.monotonic() + self._patience
        rest: str | None = ""
        while rest is not None:
            try:
                done = self._call(
                    self._core.delete_collection_namespaced_pod,
                    self.namespace,
                    label_selector=labels,
                    grace_period_seconds=grace_seconds,
                    limit=_DELETED_AT_ONCE,
                    _continue=rest,
                )
            except _Expired as error:
                if time.monotonic() > end:
                    raise self._unanswered(error) from error
                rest = ""  # begin anew with the pods that are left
                continue
            rest = done["metadata"].get("continue") or None

    def now(self) -> datetime:
        """Return the API server's time, UTC, to the second. It is the only clock that launchers and pruners share."""
        return datetime.now(UTC) + self._clock

    def version(self) -> str:
        """Return the version of the API server."""
        return str(self._call(self._version.get_code)["gitVersion"])

    def may(self, verb: str, group: str, resource: str, subresource: str = "") -> bool:
        """True if we have this permission in the namespace."""
        asked = {"namespace": self.namespace, "verb": verb, "group": group, "resource": resource}
        body = {"spec": {"resourceAttributes": {**asked, "subresource": subresource}}}
        answer = self._call(self._authorization.create_self_subject_access_review, body)
        return bool(answer["status"]["allowed"])

    def log(
        self, pod: str, container: str, since_seconds: int | None, silence_seconds: float
    ) -> Generator[str]:
        """Yield the lines of a container's log with their time stamps, as they arrive, until the stream ends.

        Does not retry: any failure, or `silence_seconds` without a line, raises `ConnectionError`.
        """
        since = {} if since_seconds is None else {"since_seconds": since_seconds}
        pieces = self._stream(
            f"the log of {pod}",
            self._core.read_namespaced_pod_log,
            pod,
            self.namespace,
            container=container,
            follow=True,
            timestamps=True,
            silence_seconds=silence_seconds,
            **since,
        )
        for line in _lines(pieces):
            yield line.decode(errors="replace")

    def changes(self, kind: Kind, labels: str = "", fields: str = "") -> Generator[Document]:
        """Watch the objects that match these selectors: yield an empty document at the begin, then the object of each
        change, until the server ends the stream after `WATCH_SECONDS`. A removed object comes in its last state.

        Does not retry: any failure raises `ConnectionError`, a missing right `ClusterRefused`. So does a connection
        that is dead and was not closed: the server sends a bookmark each minute.
        """
        stream = self._stream(
            f"the changes of each {kind}",
            self._verb("list", kind),
            self.namespace,
            label_selector=labels,
            field_selector=fields,
            watch=True,
            resource_version="0",  # as the server has them in memory: a later change follows
            allow_watch_bookmarks=True,
            timeout_seconds=WATCH_SECONDS,
            silence_seconds=SILENCE_SECONDS,
        )
        try:
            next(stream)
            yield {}
            for line in _lines(stream):
                if not line.startswith(_BOOKMARK):
                    yield json.loads(line)["object"]
        except (ValueError, KeyError) as error:
            raise ConnectionError(f"the changes of each {kind} were cut: {error}") from error
        except ConnectionError as error:
            if isinstance(error.__cause__, ApiException) and _status(error.__cause__) == _FORBIDDEN:
                raise self._not_let(error.__cause__) from error
            raise

    def _stream(
        self, what: str, function: Callable[..., Any], *args: Any, silence_seconds: float, **options: Any
    ) -> Generator[bytes]:
        """Yield an empty piece of `what` once it is open, then each piece as it arrives. Raise `ConnectionError`."""
        try:
            stream: Any = function(
                *args, _preload_content=False, _request_timeout=(CONNECT_SECONDS, silence_seconds), **options
            )
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            raise ConnectionError(f"{what} cannot be read: {_said(error)}") from error
        try:
            yield b""
            yield from stream.stream(decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ConnectionError(f"the connection to {what} broke: {error}") from error
        finally:
            stream.close()

    @contextmanager
    def impatient(self, seconds: float) -> Generator["Cluster"]:
        """Yield the same cluster with retries for at most `seconds`."""
        hurried = Cluster.__new__(Cluster)
        hurried.__dict__.update(self.__dict__, _patience=min(seconds, self._patience))
        yield hurried

    def _verb(self, verb: str, kind: Kind) -> Callable[..., Any]:
        if kind not in _CUSTOM:
            return getattr(self._apis[kind], f"{verb}_namespaced_{kind}")
        # The client has no class for it: the same calls with the same arguments.
        call = getattr(self._custom, f"{'get' if verb == 'read' else verb}_namespaced_custom_object")
        names = {"create": ("namespace", "body"), "list": ("namespace",)}.get(
            verb, ("name", "namespace", "body")
        )
        group, version = _CUSTOM[kind]
        where = {"group": group, "version": version, "plural": f"{kind}s"}
        return lambda *given, **options: call(**where, **dict(zip(names, given, strict=False)), **options)

    def _missing(self, kind: Kind, error: Exception) -> ClusterRefused:
        if kind == "jobset":
            return JobSetsMissing(
                f"{self.where} has no JobSets ({error}): install JobSet 0.10 or newer in the cluster, or set "
                "ML_ASSETS_KUBERNETES_BACKEND to job"
            )
        return TrainJobsMissing(
            f"{self.where} has no TrainJobs ({error}): install Kubeflow Trainer 2.1 in the cluster, or set "
            "ML_ASSETS_KUBERNETES_BACKEND to jobset or job"
        )

    def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Document:
        def ask() -> Document:
            asked = datetime.now(UTC)
            try:
                answer = function(
                    *args,
                    _preload_content=False,
                    _request_timeout=(CONNECT_SECONDS, READ_SECONDS),
                    **options,
                )
                document = cast(Document, json.loads(answer.data))
            except (ApiException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                if _status(error) == _GONE and options.get("_continue"):
                    raise _Expired(_said(error)) from error
                self._raise_unless_passing(error)
                if _status(error) == _UNAUTHORIZED:
                    self._log_in_again()
                raise self._unanswered(error) from error
            if (told := time_told(answer.headers)) is not None:
                self._clock = told - asked
            self._was_let_in = True
            return document

        return patiently(ask, _may_pass, self._seconds_for, first_pause=0.1, longest_pause=_LONGEST_PAUSE)

    def _seconds_for(self, error: BaseException) -> float:
        """Return the seconds of retries: at most 10 after a 401 if no request has succeeded yet."""
        never_let_in = _status(error.__cause__) == _UNAUTHORIZED and not self._was_let_in
        return min(self._patience, _LOGIN_SECONDS) if never_let_in else self._patience

    def _log_in_again(self) -> None:
        """Read the credentials again. Kubeconfig and token files are replaced while we run."""
        with suppress(ClusterRefused):  # the file may be half written
            api, self.where = _log_in(self._context)
            for part in self._all:
                part.api_client = api

    def _unanswered(self, error: Exception) -> ClusterUnavailable | ClusterRefused:
        """Return the error for a request that failed until its retries ran out."""
        if _status(error) == _UNAUTHORIZED and not self._was_let_in:
            return self._not_let(error)
        what = "rejected our credentials" if _status(error) == _UNAUTHORIZED else "did not answer"
        check = "the credentials" if _status(error) == _UNAUTHORIZED else "that it runs"
        return ClusterUnavailable(
            f"the API server at {self.where} {what} for {self._patience:g} s ({_said(error)}): check {check} and that "
            "this machine reaches it, then run again: the run attaches to the training if it still runs, else resumes "
            "it from its checkpoint"
        )

    def _not_let(self, error: Exception) -> ClusterRefused:
        return ClusterRefused(
            f"{self.where} denied access ({_said(error)}): check the kubeconfig's credentials and bind "
            f"the launcher's role in namespace {self.namespace} (deployment/helm); "
            "ml-assets doctor lists each permission"
        )

    def _raise_unless_passing(self, error: Exception) -> None:
        if not isinstance(error, ApiException):
            return
        status = _status(error)
        if status == _FORBIDDEN:
            raise self._not_let(error) from error
        if status == _NOT_FOUND:
            raise _Absent(_said(error)) from error
        if status == _CONFLICT:
            raise AlreadyThere(_said(error)) from error
        if status not in _PASSING and 0 < status < _INTERNAL:
            raise ClusterRefused(
                f"{self.where} refused a request: {_said(error)}. If it names a field of the Job, correct the "
                "pipeline's resources; otherwise the cluster may be older than Kubernetes 1.29"
            ) from error


class _Absent(Exception):
    """404: the object, or its kind, does not exist."""


class _Expired(Exception):
    """410 for the continuation of a list. The list must begin anew."""


def _log_in(context: str | None) -> tuple[Any, str]:
    """Return a client with the current credentials, and the cluster's address for messages."""
    configuration: Any = client.Configuration()
    configuration.retries = False  # we retry ourselves, up to a deadline
    where = _configure(configuration, context)
    return client.ApiClient(configuration), where


def _lines(pieces: Iterable[bytes]) -> Generator[bytes]:
    """Yield the lines of a stream, without their ends."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _status(error: BaseException | None) -> int:
    """Return the HTTP status of the server's answer; 0 without an answer."""
    return int(error.status or 0) if isinstance(error, ApiException) else 0


def _may_pass(error: BaseException) -> bool:
    """True if a retry may help: the server is away, or it rejected credentials that may have been replaced."""
    return isinstance(error, ClusterUnavailable) or _status(error.__cause__) == _UNAUTHORIZED


def _configure(configuration: Any, context: str | None) -> str:
    """Fill in address and credentials; return the cluster's address for messages."""
    try:
        if context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=configuration)
        else:
            # The client reads KUBECONFIG only once, when it is imported.
            file = os.environ.get("KUBECONFIG")
            config.load_kube_config(file, context=context, client_configuration=configuration)
    except config.ConfigException as error:
        raise ClusterRefused(
            f"no cluster is configured: {error}. Point KUBECONFIG at a kubeconfig, name one of its contexts in "
            "ML_ASSETS_KUBERNETES_CONTEXT, or run inside the cluster"
        ) from error
    return f"{configuration.host}"


def _said(error: Exception) -> str:
    """Return the server's message, or the type and text of the client's error."""
    if isinstance(error, ApiException) and error.body:
        try:
            return str(json.loads(error.body)["message"])
        except (ValueError, KeyError, TypeError):
            return str(error.body)[:300]
    if isinstance(error, ApiException):
        return str(error.reason)
    return f"{type(error).__name__}: {error}"
