"""Usage of each training: what its attempts reserved, from when to when, and where its wall time went.

    usage/<model>/<fingerprint>.json    among the artifacts: the newest record of a training, over all its launches

A launch writes the record when an attempt gets or loses places, every 30 s, and at its end. So a killed launcher loses
30 s at most, and the next launch of the training reads from the events of the workers how long they went on. Not here:
prices and sums, the readings (the launchers).
"""

import json
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter
from pydantic_core import from_json

from ml_assets.model.steps.goodput import Goodput, LaunchSpan, Trained, goodput_of, mark_of, trained_of
from ml_assets.model.steps.live_report import Attempts
from ml_assets.model.training.attempt.pace import INTERVAL, SaveInterval, loses_work
from resources.artifacts import (
    ArtifactMissing,
    Artifacts,
    ArtifactsError,
    read_artifact,
)
from resources.job.errors import Diverged
from resources.job.events import USAGE, TrainingEvent
from resources.job.job import ExitCode, TrainingJob
from resources.job.reserved import RESERVED, Reserved
from resources.launcher.protocol import goes_on_after, nobody_comes_back
from resources.threads import working_beside

EVERY_SECONDS = 30.0
"""Seconds between two records of a training that runs."""
_LOOK_SECONDS = 0.5
_PATIENCE_SECONDS = 5.0
"""Seconds for which the end of a training waits for a record that is being written."""

_LOG = logging.getLogger(__name__)

UsageState = Literal["running", "completed", "failed", "diverged", "cancelled", "preempted", "lost"]
"""State of an attempt. `preempted`: it saved after SIGTERM, as an evicted pod does. `lost`: nobody reported its end."""


class UsageDamaged(ArtifactsError):
    """The record of a training cannot be read. The message names the file, and the remedy."""


@dataclass(frozen=True, kw_only=True)
class UsedAttempt:
    """Reservation of one attempt."""

    reading: Reserved
    gpus: int
    """GPUs of each place."""
    gpu: str
    """Name of the GPU, as its driver has it; empty if no worker reported it."""
    state: UsageState
    workers: int = 0
    """Workers that trained; 0 if none began, and in records of earlier releases."""
    trained_seconds: float = 0.0
    """Seconds from the start of the workers to their last sign of life."""
    lost_work: bool = False
    """True if it ended without a save, because a worker, its pod or its machine was lost."""
    interval: SaveInterval | None = None
    """Newest interval that `checkpoint_every_minutes: auto` chose; None for a fixed one."""

    @property
    def gpu_hours(self) -> float:
        """Hours of all GPUs that it held."""
        return self.gpus * self.reading.place_seconds / 3600

    @property
    def core_hours(self) -> float:
        """Hours of all processor cores that it held."""
        return self.reading.cores * self.reading.place_seconds / 3600

    @property
    def gib_hours(self) -> float:
        """Hours of each GiB of memory that it held; 0 on this machine, where nothing reserves memory."""
        return self.reading.memory_bytes / 2**30 * self.reading.place_seconds / 3600


@dataclass(frozen=True, kw_only=True)
class UsedLaunch:
    """One launch of a training that reserved something."""

    id: str
    run_id: str
    """Dagster run."""
    author: str
    began: float
    """Seconds since the epoch, UTC, as `at`."""
    at: float
    """Time of the newest record, or of the end."""
    state: UsageState


@dataclass(frozen=True, kw_only=True)
class UsageRecord:
    """Usage of one training."""

    environment: str
    env: str
    """Environment of `ml-assets env create`; empty for main."""
    model: str
    partition: str
    fingerprint: str
    launches: Annotated[tuple[UsedLaunch, ...], Field(min_length=1)]
    attempts: Annotated[tuple[UsedAttempt, ...], Field(min_length=1)]
    """Oldest first, by the time of their first place."""
    goodput: Goodput
    """Parts of the wall time of all launches."""
    function: str = ""
    """Import path of the model function or script; empty in records of earlier releases."""

    @property
    def at(self) -> float:
        """Time of the newest record, in seconds since the epoch."""
        return max(one.at for one in self.launches)

    @property
    def is_open(self) -> bool:
        """True if an attempt reserved something when the record was written."""
        return any(one.reading.places for one in self.attempts)

    def to_json(self) -> str:
        """Return the content of the file."""
        return json.dumps(asdict(self), sort_keys=True, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "UsageRecord":
        """Inverse of `to_json`. Ignores keys of later releases. Raises `ValueError`, also for numbers that JSON lacks,
        such as NaN: a sum or an interval with one says nothing."""
        return _readable().validate_python(from_json(text, allow_inf_nan=False))


@cache
def _readable() -> TypeAdapter[UsageRecord]:
    return TypeAdapter(UsageRecord)


def usage_file(model: str, fingerprint: str) -> tuple[str, str]:
    """Return folder and file of a training's record among the artifacts."""
    return f"{USAGE}/{model}", f"{fingerprint[:16]}.json"


def read_usage(artifacts: Artifacts, model: str, fingerprint: str) -> UsageRecord | None:
    """Return the record of a training; None if it never reserved anything. Raises `ArtifactsError`, and
    `UsageDamaged`."""
    return read_usage_file(artifacts, "/".join(usage_file(model, fingerprint)))


def read_usage_file(artifacts: Artifacts, path: str) -> UsageRecord | None:
    """Return the record at a path among the artifacts; None if there is none. Raises `ArtifactsError`, and
    `UsageDamaged`."""
    folder, _, file = path.rpartition("/")
    try:
        return UsageRecord.from_json(read_artifact(artifacts, folder, file).decode())
    except ArtifactMissing:
        return None
    except ValueError as error:
        raise UsageDamaged(
            f"{artifacts.address(folder)}/{file} is damaged, so what its training reserved is not known: restore the "
            "file from a backup, or delete it, and its earlier attempts count as nothing"
        ) from error


@dataclass(kw_only=True)
class Usage:
    """Record in the making: takes the events of a launch, and of the launches before it."""

    artifacts: Artifacts
    job: TrainingJob
    environment: str
    env: str
    run_id: str
    author: str
    _launch: UsedLaunch = field(init=False)
    _earlier: dict[str, UsedLaunch] = field(default_factory=dict[str, UsedLaunch])
    _attempts: Attempts = field(default_factory=Attempts)
    _marks: list[TrainingEvent] = field(default_factory=list[TrainingEvent])
    _started: list[TrainingEvent] = field(default_factory=list[TrainingEvent])
    _intervals: list[TrainingEvent] = field(default_factory=list[TrainingEvent])
    _own: set[str] = field(default_factory=set[str])
    """Names of the attempts of this launch."""
    _is_due: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        now = time.time()
        self._launch = UsedLaunch(
            id=uuid.uuid4().hex[:16],
            run_id=self.run_id,
            author=self.author,
            began=now,
            at=now,
            state="running",
        )

    def catch_up(self, events: Iterable[TrainingEvent]) -> list[TrainingEvent]:
        """Take the events of earlier launches; return the readings of the record. Raises `ArtifactsError`."""
        self._merge()
        for event in events:
            self._take(event)
        return [one.event() for one in self._attempts.held()]

    def hear(self, event: TrainingEvent) -> None:
        """Take an event of this launch."""
        with self._lock:
            if event.kind == RESERVED:
                self._own.add(str(event.values["job"]))
                self._is_due = True
            self._take(event)

    @contextmanager
    def recording(self, comes_back: Callable[[BaseException], bool] = nobody_comes_back) -> Generator[None]:
        """Keep the record while the block runs, and end it with the block. `comes_back` is that of a launcher.

        A store that is away does not fail the training: the next record has all that this one lacks.
        """
        state: UsageState = "completed"
        try:
            with working_beside(self._keep, "usage", _PATIENCE_SECONDS):
                yield
        except Diverged:
            state = "diverged"
            raise
        except BaseException as error:
            ended: UsageState = "failed" if isinstance(error, Exception) else "cancelled"
            state = "lost" if goes_on_after(error, comes_back) else ended
            raise
        finally:
            self._end(state)

    def record(self) -> UsageRecord | None:
        """Return the record as it is now; None if the training reserved nothing."""
        with self._lock:
            held = self._attempts.held()
            if not held:
                return None
            launches = sorted([*self._earlier.values(), self._launch], key=lambda one: one.began)
            return UsageRecord(
                environment=self.environment,
                env=self.env,
                model=self.job.model,
                partition=self.job.partition,
                fingerprint=self.job.fingerprint,
                launches=tuple(one for one in launches if self._own or one is not self._launch),
                attempts=tuple(self._used(held)),
                function=self.job.model_function or self.job.script,
                goodput=goodput_of([LaunchSpan(one.began, one.at) for one in launches], held, self._marks),
            )

    def _take(self, event: TrainingEvent) -> None:
        self._attempts.hear(event)
        if event.kind == "started":
            self._started.append(event)
        if event.kind == INTERVAL:
            self._intervals.append(event)
        if (mark := mark_of(event)) is not None:
            self._marks.append(mark)

    def _merge(self) -> None:
        """Take what other launches recorded. Raises `ArtifactsError`."""
        try:
            known = read_usage(self.artifacts, self.job.model, self.job.fingerprint)
        except UsageDamaged as error:  # no reason to end a training; the next record replaces it
            _LOG.warning("%s", error)
            return
        if known is None:
            return
        with self._lock:
            self._earlier |= {one.id: one for one in known.launches if one.id != self._launch.id}
            for one in known.attempts:
                self._attempts.hear(one.reading.event())

    def _keep(self, over: threading.Event) -> None:
        stored = time.monotonic()
        while not over.wait(_LOOK_SECONDS):
            if self._own and (self._is_due or time.monotonic() - stored > EVERY_SECONDS):
                self._is_due, stored = False, time.monotonic()
                self._store("running")

    def _end(self, state: UsageState) -> None:
        """Write the last record. Places that are still held end now, unless the workers go on without this launch."""
        if not self._own:
            return
        now = time.time()
        with self._lock:
            for one in self._attempts.held() if state != "lost" else ():
                if one.job in self._own and one.places:
                    seconds = one.place_seconds + one.places * max(0.0, now - one.at)
                    ended = replace(one, at=max(now, one.at), places=0, place_seconds=seconds)
                    self._attempts.hear(ended.event())
        self._store(state)

    def _store(self, state: UsageState) -> None:
        self._launch = replace(self._launch, at=time.time(), state=state)
        with suppress(ArtifactsError, OSError):
            self._merge()
            if (record := self.record()) is not None:
                with self.artifacts.create(*usage_file(record.model, record.fingerprint)) as stream:
                    stream.write(record.to_json().encode())

    def _used(self, held: list[Reserved]) -> Generator[UsedAttempt]:
        nexts = [*(one.began for one in held[1:]), math.inf]
        trained = trained_of(self._marks)
        for one, until in zip(held, nexts, strict=False):
            here = next((it for it in trained if one.began <= it.started.time < until), None)
            chosen = [event for event in self._intervals if one.began <= event.time < until]
            starts = [event for event in self._started if one.began <= event.time < until]
            device = starts[0].values if starts else {}
            uses_gpus = device.get("device") == "cuda"
            state = self._state_of(one, until, is_last=math.isinf(until))
            yield UsedAttempt(
                reading=one,
                gpus=int(uses_gpus) if one.gpus is None else one.gpus,
                gpu=str(device.get("gpu", "")),
                state=state,
                **({} if here is None else _trained_facts(here, state)),
                interval=SaveInterval.of(chosen[-1]) if chosen else None,
            )

    def _state_of(self, held: Reserved, until: float, *, is_last: bool) -> UsageState:
        own = [one for one in self._marks if held.began <= one.time < until]
        kinds = {one.kind for one in own}
        if "finished" in kinds:
            return "completed"
        if any(one.values.get("error") == Diverged.__name__ for one in own):
            return "diverged"
        # In a pod, the first words of an attempt may be why the previous one ended.
        started = min((one.time for one in own if one.kind == "started"), default=held.began)
        ends = [one.values.get("code") for one in own if one.kind == "ended" and one.time >= started]
        if ends and ends[-1] != ExitCode.PREEMPTED:
            return "failed"
        cancelled = (one for one in self._earlier.values() if one.state == "cancelled")
        if any(one.began <= held.began <= one.at < until for one in cancelled):
            return "cancelled"
        if ends:
            return "cancelled" if is_last and self._launch.state == "cancelled" else "preempted"
        if "failed" in kinds:
            return "failed"
        if not is_last:
            return "lost"
        return "running" if held.places else self._launch.state


def _trained_facts(trained: Trained, state: UsageState) -> dict[str, Any]:
    return {
        "workers": int(trained.started.values.get("world_size", 0)),
        "trained_seconds": trained.last_sign - trained.started.time,
        # A person who cancels, or a launch that goes on, says nothing about losses.
        "lost_work": state not in ("running", "cancelled") and loses_work(trained.marks),
    }
