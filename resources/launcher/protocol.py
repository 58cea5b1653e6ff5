"""Protocol of a launcher: run one job, report its progress, retry its attempts.

Here too, for all launchers: checks of the GPUs that a training needs, before a process starts; the pause before the
next attempt; the destinations of the workers' lines: callbacks, the log file of the job, the tail that an error quotes.
Not here: the GPUs of a pod (resource_profile), the device of a rank (the worker asks torch).
"""

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, Self

from resources.artifacts import ArtifactsUnavailable
from resources.job.errors import BadConfiguration, ClusterUnavailable, FailedTwice
from resources.job.events import LOG, TrainingEvent
from resources.job.job import TrainingJob, TrainingResult
from resources.job.training_settings import TrainingSettings
from resources.launcher.resource_profile import ResourceProfile

_GPUS = ("nvidia[0-9]*", "dxg", "kfd")
"""Device files of NVIDIA's driver, of NVIDIA's driver under WSL, and of AMD's driver."""


def has_gpus(devices: Path = Path("/dev")) -> bool:
    """True if this machine shows a GPU."""
    return any(next(devices.glob(pattern), None) for pattern in _GPUS)


def refuse_few_gpus(gpus: int, ranks: int, nodes: int) -> None:
    """Raise `BadConfiguration` if this machine has GPUs, but fewer than the `ranks` on each of the `nodes` machines."""
    if not 0 < gpus < ranks:
        return
    has = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    share = f"{ranks * nodes} / {nodes} machines = {ranks}" if nodes > 1 else str(ranks)
    raise BadConfiguration(
        f"this machine has {has} for {share} workers, and a worker on the CPU would slow down the workers on GPUs: set "
        f"training.workers to {gpus * nodes}, or training.device to cpu to use no GPU at all"
    )


def refuse_without_gpus(settings: TrainingSettings, *, has_gpus: bool, where: str) -> None:
    """Raise `BadConfiguration` if `settings` need GPUs and there are none. `where`: clause for the message."""
    if settings.precision == "fp16" and not has_gpus:
        raise BadConfiguration(
            f"precision fp16 needs a GPU for each of the {settings.workers} workers, and {where}. Use bf16, which CPUs "
            "support too, or fp32"
        )


LONGEST_SECONDS = 300.0
_DOUBLINGS = 9
"""Doublings of the pause until it exceeds `LONGEST_SECONDS`."""


def pause_after(fruitless: int) -> float:
    """Return the pause in seconds after `fruitless` consecutive attempts that were preempted before their first step.

    Such attempts use no budget: any attempt may be preempted as it starts. But if one after the other is (a machine
    short of memory, pods of a higher priority), an immediate retry does not help. No pause after the first attempt,
    1 s after the second, then twice as long each time, at most 300 s.
    """
    return min(2.0 ** min(fruitless - 2, _DOUBLINGS), LONGEST_SECONDS) if fruitless > 1 else 0.0


def in_words(pause: float) -> str:
    """Return a clause on the pause for a log line; empty without a pause."""
    return f" in {pause:g} s: each of the last attempts ended before its first step" if pause else ""


def nobody_comes_back(_: BaseException) -> bool:
    """Return False: after an exception that ends the wait, the pods of a training are removed."""
    return False


def goes_on_after(error: BaseException, comes_back: Callable[[BaseException], bool]) -> bool:
    """True if `error` ends the wait of a launcher alone: its pods stay, and may still train.

    The API server or the artifacts are away, or the run was interrupted and comes back.
    """
    return isinstance(error, ClusterUnavailable | ArtifactsUnavailable) or comes_back(error)


class TrainingLauncher(Protocol):
    """Runs jobs. Returns the result of a finished job of the same fingerprint without running anything."""

    def run(
        self,
        job: TrainingJob,
        folder: Path,
        on_event: Callable[[TrainingEvent], None],
        on_log: Callable[[str], None],
        profile: ResourceProfile | None = None,
        run_id: str = "",
        comes_back: Callable[[BaseException], bool] = nobody_comes_back,
    ) -> TrainingResult:
        """Train `job` in its fingerprint's `folder` until it is done.

        `profile`: resources of each pod on a cluster; processes of this machine share the machine. `run_id`: the run
        that waits for the training. If the launcher dies, the workers go on until that run has ended. `comes_back`:
        called with the exception that ends the wait; True if the run ends without being canceled. Then pods train on,
        and its resume, or another launch, attaches to them. Processes of this machine save and end in any case.

        Raises one of `resources.job.errors`. A final failure is not retried. A preemption uses no budget. Any other
        failure is retried from the last good checkpoint, up to `max_attempts` failures; an error of Python that repeats
        at the same place is final.
        """
        ...

    def facts(self, profile: ResourceProfile | None = None) -> dict[str, str]:
        """Return facts for the record of a run: the launcher, and on a cluster the image, namespace and resources."""
        ...

    def prune(
        self,
        has_ended: Callable[[str], bool] = lambda _: False,
        on_log: Callable[[str], None] = lambda _: None,
    ) -> list[str]:
        """Remove trainings whose launcher is gone and will not come back; return their names. Safe at any time.

        `has_ended(run_id)`: True if neither that run nor a retry can come back. By default no run counts as ended.
        `on_log` gets a line for each object that could not be classified or removed.
        """
        ...


_TAIL_LINES = 15
_TRAINED = ("metrics", "epoch", "checkpoint", "recovered")
"""Kinds of events that a worker reports only after a step."""


class Output:
    """Takes lines and events of workers in the caller's thread. Does not write the event file: workers write it
    themselves, because this process may be killed."""

    def __init__(
        self, folder: Path, on_event: Callable[[TrainingEvent], None], on_log: Callable[[str], None]
    ) -> None:
        self.log_file = folder / LOG
        self._log = self.log_file.open("a", buffering=1)
        self._on_event, self._on_log = on_event, on_log
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.reason = ""
        """Message of the first `failed` event of this attempt."""
        self.cause = ""
        """Cause of the end of this attempt, reported by the agent of its workers."""
        self.has_trained = False
        """True if this attempt has reported a step."""
        self._places: set[str] = set()
        """Places at which this attempt failed, each reported by the agent of a machine."""
        self._earlier_places: set[str] = set()

    @property
    def tail(self) -> str:
        """Last log lines of this attempt."""
        return "\n".join(self._tail)

    def begin(self) -> None:
        """Begin another attempt: reset reason, cause and tail."""
        self.reason, self.cause, self.has_trained = "", "", False
        self._earlier_places |= self._places
        self._places = set()
        self._tail.clear()

    def take(self, line: str, whose: str = "") -> None:
        """Take one line of a worker. Pass on an event; write any other line to the log, after the prefix `whose`."""
        event = TrainingEvent.from_line(line)
        if event is None:
            self.say(whose + line)
        else:
            self.tell([event])

    def tell(self, events: Iterable[TrainingEvent]) -> None:
        """Pass on events, and note reason, cause and progress of the attempt."""
        for event in events:
            if event.kind == "failed":
                self.reason = self.reason or str(event.values.get("message", ""))
            if event.kind == "ended":
                self.cause = str(event.values.get("cause", ""))
                self._places |= {str(event.values.get("place", ""))} - {""}
            self.has_trained |= event.kind in _TRAINED
            self._on_event(event)

    def failed_twice(self) -> FailedTwice | None:
        """Return the error of an attempt that failed at the place of an earlier one; None if it did not."""
        if not (repeated := sorted(self._places & self._earlier_places)):
            return None
        return FailedTwice(
            f"failed twice at the same place, so another attempt would fail there too: {repeated[0]}. Correct that "
            "code, or what it reads, and launch again: a training of changed code begins anew, an unchanged one "
            f"resumes from its last checkpoint. The last lines of {self.log_file}:\n{self.tail}"
        )

    def say(self, line: str) -> None:
        """Write a line of a worker or of the launcher to the log."""
        self._log.write(line + "\n")
        self._tail.append(line)
        self._on_log(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
