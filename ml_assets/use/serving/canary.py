"""Canary and shadows beside the version in production: assignment of entities, threads, and predictions that are only
logged.

An entity, such as an aircraft, is named by columns of its rows. A stable hash with a secret assigns it, so it is always
on the same side: in every process, on every machine, after every restart. With a larger share the canary keeps its
entities and gets more. Another canary gets other entities, because model, bundle and begin are part of the hash. The
secret is that of the servers: a client that could compute the side of an entity would choose which version its rows
make look bad.

Champion and canary of each model have a few threads each, so that their latencies are compared alike, and a slow canary
holds up nothing but its own requests. A request waits for a thread of the canary up to a bound, and for the prediction
up to the same bound; then production answers. Only a prediction that takes too long is the canary's error. Too many
requests at once are not, since they would wait for the champion's threads as well, and a list that takes long is not,
since its client chooses its length. The champion has no bound: its answer is always sent. But an answer that a canary
would have lost counts against the champion in the comparison, too (`too_slow_for`). The threads are daemons: a canary
that hangs for ever does not keep the process from ending.

A shadow predicts in a thread after the answer, and costs a request no time but that of the processor. Its queue is
bounded: requests that find no room are dropped and counted. Not here: the share itself (`release.canary`).
"""

import asyncio
import hashlib
import json
import math
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from queue import Empty, Full, Queue, SimpleQueue
from typing import Any, TypeVar

from ml_assets.use.serving.raw_rows import Prediction, RawRow, predict_many
from ml_assets.use.serving.watch import ServedVersion
from resources.artifacts import Artifacts, ArtifactsRefused
from resources.ledger import Ledger
from resources.web.http_bounds import network_of

_SECRET = ("serving-secret", "canary")
"""Folder and file of the secret among the artifacts."""
_SECRET_BYTES = 32


class EntityRefused(ValueError):
    """A row does not name its entity."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(f"column {column!r} {why}")
        self.column = column


def entity_of(row: Mapping[str, object], by: Sequence[str]) -> str:
    """Return the name of the entity of a raw row: a JSON list with a text or null for each column in `by`.

    A number and its text are one value, so 5, 5.0 and "5" name the same entity; so do null and NaN. Raises
    `EntityRefused` if a column is missing, or holds a list or an object.
    """
    return json.dumps([_text(row, column) for column in by], ensure_ascii=False, separators=(",", ":"))


def shared_secret(artifacts: Artifacts, ledger: Ledger) -> bytes:
    """Return the secret that all servers with these artifacts share. The first one makes it, in its turn at the ledger.

    Without the file, the next server makes another one, and entities change their sides once. Raises `ArtifactsError`
    and, if there is no secret yet, `LedgerError`.
    """
    folder, file = _SECRET
    if not artifacts.exists(folder, file):
        with ledger.turn(folder):
            if not artifacts.exists(folder, file):
                with artifacts.create(folder, file) as made:
                    made.write(secrets.token_bytes(_SECRET_BYTES))
    with tempfile.TemporaryDirectory(prefix="ml-assets-") as fetched:
        artifacts.fetch(folder, file, target := Path(fetched) / file)
        secret = target.read_bytes()
    if len(secret) != _SECRET_BYTES:
        raise ArtifactsRefused(
            f"{artifacts.address(folder)}/{file} is no secret of {_SECRET_BYTES} bytes: remove it, and restart all "
            "servers"
        )
    return secret


def is_of_canary(
    entity: str, *, secret: bytes, model: str, bundle_digest: str, begun: datetime, share: float
) -> bool:
    """Return True if the canary with this bundle, promoted at `begun`, answers the requests of `entity`.

    `share` is the canary's share of entities, from 0 to 1. An entity without a name, whose columns are all null, is
    always production's: it may be most of the requests, and one side would get all of them.
    """
    if all(name is None for name in json.loads(entity)):
        return False
    # The first 53 bits of a keyed BLAKE2b hash are a place in [0, 1) which a float holds exactly.
    salted = json.dumps([model, bundle_digest, begun.astimezone(UTC).isoformat(), entity]).encode()
    place = (int.from_bytes(hashlib.blake2b(salted, key=secret, digest_size=8).digest()) >> 11) / 2**53
    return place < share


def sender_of(address: str, secret: bytes) -> str:
    """Return a name of the client at this network address that does not show the address."""
    return hashlib.blake2b(network_of(address).encode(), key=secret, digest_size=8).hexdigest()


def _text(row: Mapping[str, object], column: str) -> str | None:
    if column not in row:
        raise EntityRefused(column, "is missing; it names the entity (release.canary.by)")
    match row[column]:
        case None:
            return None
        case bool(value):
            return "true" if value else "false"
        case float(value):
            if math.isnan(value):
                return None
            return str(int(value)) if value.is_integer() else repr(value)
        case int(value):
            return f"{value:d}" if -(2**63) <= value < 2**64 else repr(float(value))
        case str(value):
            return value
        case date() as value:  # a datetime, too
            return value.isoformat()
        case value:
            raise EntityRefused(
                column,
                f"holds {type(value).__name__}, but it names the entity (release.canary.by): send a text, a number or "
                "a boolean",
            )


THREADS = 2
"""Threads of a version."""
MOST = 64
"""Requests that wait for a canary, or that it still works on. Further ones get production's answer at once."""

Answer = TypeVar("Answer")


LIST_TIMES = 60
"""A list that holds a thread for that many times the bound hangs: only then it is the canary's error."""


class CanaryTooSlow(Exception):
    """The canary did not predict within the bound. Production answers, and the log has this error."""

    def __init__(self, seconds: float, *, hangs: bool) -> None:
        super().__init__(f"no answer within {seconds:g} s")
        self.hangs = hangs
        """True if earlier requests hold all threads."""


class CanaryBusy(Exception):
    """No thread of the canary took the request within the bound. Production answers; the canary has no part in it."""


class _Job:
    """Work of one request."""

    def __init__(self, work: Callable[[], Any], times: int) -> None:
        self.work, self.times = work, times
        self.done: Future[Any] = Future()
        self.began: float | None = None
        """Moment at which a thread took it, by the monotonic clock."""


class _Side:
    """Threads of one version of a model, and its requests. Its attributes change under `lock`."""

    def __init__(self, name: str) -> None:
        self.open = 0
        """Requests that wait or are worked on."""
        self.running: set[_Job] = set()
        self.lock = threading.Lock()
        self._queue: SimpleQueue[_Job] = SimpleQueue()
        for _ in range(THREADS):
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def put(self, work: Callable[[], Any], is_list: bool) -> _Job:
        job = _Job(work, LIST_TIMES if is_list else 1)
        with self.lock:
            self.open += 1
        job.done.add_done_callback(lambda _: self._close())
        self._queue.put(job)
        return job

    def is_held(self, seconds: float) -> bool:
        """Return True if each thread has worked `seconds` or longer on a row, or `LIST_TIMES` that on a list."""
        now = time.monotonic()
        with self.lock:
            held = sum(now - (job.began or now) >= job.times * seconds for job in self.running)
        return held >= THREADS

    def _close(self) -> None:
        with self.lock:
            self.open -= 1

    def _work(self) -> None:
        while True:
            job = self._queue.get()
            job.began = time.monotonic()
            if not job.done.set_running_or_notify_cancel():
                continue
            with self.lock:
                self.running.add(job)
            try:
                result = job.work()
            except BaseException as error:  # whatever it is, the request that waits has to know
                end, result = job.done.set_exception, error
            else:
                end = job.done.set_result
            with self.lock:
                self.running.remove(job)
            end(result)


class CanaryThreads:
    """Threads of all models of a server; they start with the first request beside a canary."""

    def __init__(self, seconds: float) -> None:
        """Wait up to `seconds` for a thread of a canary, and as long for its prediction."""
        self._seconds = seconds
        self._sides: dict[str, _Side] = {}
        self._lock = threading.Lock()

    async def of_canary(self, model: str, work: Callable[[], Answer], *, is_list: bool = False) -> Answer:
        """Return what `work` returns in a thread of the canary.

        Raises `CanaryTooSlow`, also at once while earlier requests hold all threads longer than the bound;
        `CanaryBusy`; and what `work` raises.
        """
        side = self._side(f"{model} canary")
        self._refuse_if_held(side)
        if side.open >= MOST:
            raise CanaryBusy(f"{MOST} requests wait for the canary")
        job = side.put(work, is_list)
        answer = asyncio.wrap_future(job.done)
        try:
            await asyncio.wait({answer}, timeout=self._seconds)
            if not answer.done() and job.done.cancel():  # no thread has taken it
                self._refuse_if_held(side)
                raise CanaryBusy(f"no thread of the canary was free within {self._seconds:g} s")
            while not answer.done():
                left = (job.began or 0.0) + self._seconds - time.monotonic()
                if left <= 0:
                    raise CanaryTooSlow(self._seconds, hangs=False)
                await asyncio.wait({answer}, timeout=left)
            return answer.result()
        finally:
            answer.cancel()  # nobody waits for it any more, if it is still to come

    def too_slow_for(self, model: str) -> Callable[[float], CanaryTooSlow | None]:
        """Return a function of the seconds of a prediction that the champion begins now: the error that a canary would
        have had with it, or None."""
        is_held = self._side(f"{model} production").is_held(self._seconds)

        def why(took: float) -> CanaryTooSlow | None:
            return CanaryTooSlow(self._seconds, hangs=is_held) if is_held or took > self._seconds else None

        return why

    async def of_production(self, model: str, work: Callable[[], Answer], *, is_list: bool = False) -> Answer:
        """Return what `work` returns in a thread of the champion. Raises what `work` raises."""
        return await asyncio.wrap_future(self._side(f"{model} production").put(work, is_list).done)

    def _side(self, name: str) -> _Side:
        with self._lock:
            if name not in self._sides:
                self._sides[name] = _Side(name)
            return self._sides[name]

    def _refuse_if_held(self, side: _Side) -> None:
        if side.is_held(self._seconds):
            raise CanaryTooSlow(self._seconds, hangs=True)


LENGTH = 1_000
"""Requests that wait at most."""


@dataclass(frozen=True, slots=True)
class ShadowJob:
    """One request for the shadows of its model."""

    versions: Sequence[ServedVersion]
    rows: Sequence[RawRow]
    note: Callable[[ServedVersion, Sequence[Prediction] | Exception, int], None]
    """Record `(version, predictions or the error, nanoseconds)`."""


class ShadowQueue:
    """Queue of jobs and the thread that does them, between `start` and `stop`."""

    def __init__(self) -> None:
        self._jobs: Queue[ShadowJob] = Queue(LENGTH)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="shadows", daemon=True)
        self.dropped = 0
        """Requests that found no room."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Do the jobs that wait, then end the thread."""
        self._over.set()
        self._thread.join()

    def add(self, job: ShadowJob) -> None:
        """Let the thread do a job, or drop and count it. Never waits."""
        try:
            self._jobs.put_nowait(job)
        except Full:
            self.dropped += 1

    def _work(self) -> None:
        while not (self._over.is_set() and self._jobs.empty()):
            try:
                job = self._jobs.get(timeout=0.2)
            except Empty:
                continue
            for version in job.versions:
                began = time.perf_counter_ns()
                try:
                    predictions: Sequence[Prediction] | Exception = predict_many(version.runtime, job.rows)
                except Exception as error:  # a broken shadow must not end the thread
                    predictions = error
                job.note(version, predictions, time.perf_counter_ns() - began)
