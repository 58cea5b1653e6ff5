"""Drills: the damage that each does to a training, the checks afterwards, and the report for people and for programs.

A new drill is a function and an entry in `DRILLS`. Not here: the training that they damage (fixture).
"""

import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ml_assets.extras.drills.fault_injector import FaultInjector
from ml_assets.extras.drills.fixture import CHECKPOINT_EVERY_STEPS, Fixture
from ml_assets.extras.drills.machines import COMMAND, RANKS, bring_machine, kill_machine, set_up
from ml_assets.model.training.checkpoint.checkpoints import COMMIT, Checkpoints, folder_of
from ml_assets.model.training.data.rowlog import count_rows, digest, learned_epochs
from resources.job.errors import Diverged, TrainingFailed
from resources.job.job import TrainingJob
from resources.launcher.local import LocalLauncher

_WIDE = 16
"""Longer values may exceed their column."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """Requirement, with its measured value."""

    name: str
    measured: str | float
    unit: str = ""
    wanted: str
    ok: bool


def at_most(name: str, measured: float, limit: float, unit: str = "") -> Check:
    """Return a check of a number with an upper limit."""
    return Check(
        name=name,
        measured=round(measured, 2),
        unit=unit,
        wanted=f"at most {limit:g} {unit}".rstrip(),
        ok=measured <= limit,
    )


def equal(name: str, measured: str | float, wanted: str | float) -> Check:
    """Return a check of a value that must equal `wanted`."""
    return Check(name=name, measured=measured, wanted=str(wanted), ok=measured == wanted)


@dataclass(frozen=True, kw_only=True)
class DrillReport:
    """Report of one drill."""

    drill: str
    fault: str
    seconds: float
    checks: tuple[Check, ...]
    recoveries: tuple[str, ...]
    """Recoveries that the training itself recorded, a line each."""

    @property
    def ok(self) -> bool:
        """True if every check holds."""
        return all(check.ok for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {"ok": self.ok, **asdict(self)}

    def lines(self) -> list[str]:
        """Return the report as lines for a person."""
        width = max(len(check.name) for check in self.checks)
        values = [f"{check.measured} {check.unit}".rstrip() for check in self.checks]
        wide = max(len(value) for value in values if len(value) <= _WIDE)
        return [
            f"{self.drill}: {self.fault}",
            *(
                f"  {'✓' if check.ok else '✗'} {check.name:{width}}  {value:{wide}}  wanted: {check.wanted}"
                for check, value in zip(self.checks, values, strict=True)
            ),
            *(f"  recorded: {line}" for line in self.recoveries),
            f"  {'PASS' if self.ok else 'FAIL'} in {self.seconds:.1f} s",
        ]


_AT_STEP = 57
"""Step in the middle of the second epoch, and between two checkpoints."""
_BACK_AT_STEP = 85
"""Step in the third epoch at which a lost machine comes back."""
_HANG_SECONDS = 3.0
_LIMITS = {"rank": 8.0, "machine": 12.0, "hang": _HANG_SECONDS + 8.0}
"""Most seconds from the damage to the next trained step."""
_SAVE_SECONDS = 30.0
_GROW_SECONDS = 30.0
"""Most seconds to save, to end, and to start more processes than before."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Drill:
    """Fault, and the function that rehearses it."""

    fault: str
    perform: Callable[[Fixture, Path, Tell], tuple[list[Check], FaultInjector]]


def perform(name: str, fixture: Fixture, tell: Tell) -> DrillReport:
    """Perform the drill `name` in `fixture`; return its report. `tell` receives each event as it happens."""
    return rehearse(name, DRILLS[name], fixture, tell)


def rehearse(name: str, drill: Drill, fixture: Fixture, tell: Tell) -> DrillReport:
    """Perform a drill in a folder called `name`; return its report."""
    folder = fixture.folder / name
    folder.mkdir()
    began = time.monotonic()
    checks, injector = drill.perform(fixture, folder, tell)
    return DrillReport(
        drill=name,
        fault=drill.fault,
        seconds=round(time.monotonic() - began, 1),
        checks=tuple(checks),
        recoveries=tuple(recovery.in_words() for recovery in injector.timeline.recoveries),
    )


def _kill_rank(fixture: Fixture, folder: Path, tell: Tell) -> tuple[list[Check], FaultInjector]:
    injector = FaultInjector(_AT_STEP, lambda seen: seen.signal_ranks(1, number=signal.SIGKILL), tell)
    return [
        *_survived(fixture, folder, fixture.job, injector, LocalLauncher()),
        *_resumed(injector, _LIMITS["rank"], CHECKPOINT_EVERY_STEPS, "rank 1 was killed by SIGKILL"),
    ], injector


def lose_machine(
    fixture: Fixture, folder: Path, tell: Tell, machines: int, seconds: float
) -> tuple[list[Check], FaultInjector]:
    """Lose the first of several machines and bring it back later; return the checks.

    The other machines must train again within `seconds`; all machines must train after the return.
    """
    set_up(folder, machines)
    lost = "machine-0"
    injector = FaultInjector(
        _AT_STEP,
        lambda _: kill_machine(folder, lost),
        tell,
        repair_at_step=_BACK_AT_STEP,
        repair=lambda: bring_machine(folder, lost),
    )
    most, fewer = machines * RANKS, (machines - 1) * RANKS
    job, launcher = fixture.job_with(workers=most, max_attempts=2), LocalLauncher(command=COMMAND)
    checks = _survived(fixture, folder, job, injector, launcher, attempts=3)
    sizes = injector.timeline.world_sizes
    grown = injector.timeline.recoveries[1].steps_lost if len(injector.timeline.recoveries) > 1 else -1
    return [
        *checks,
        equal("workers, by attempt", ", ".join(map(str, sizes)), f"{most}, {fewer}, {most}"),
        *_resumed(injector, seconds, CHECKPOINT_EVERY_STEPS, "a rank of another node was lost"),
        at_most(
            "machine's return to next trained step",
            injector.seconds_to_step_after_repair(),
            _GROW_SECONDS,
            "s",
        ),
        equal("steps repeated when workers were added", grown, 0),
    ], injector


def _kill_node(fixture: Fixture, folder: Path, tell: Tell) -> tuple[list[Check], FaultInjector]:
    return lose_machine(fixture, folder, tell, machines=2, seconds=_LIMITS["machine"])


def _hang(fixture: Fixture, folder: Path, tell: Tell) -> tuple[list[Check], FaultInjector]:
    injector = FaultInjector(_AT_STEP, lambda seen: seen.signal_ranks(1, number=signal.SIGSTOP), tell)
    job = fixture.job_with(heartbeat_timeout_seconds=_HANG_SECONDS)
    return [
        *_survived(fixture, folder, job, injector, LocalLauncher()),
        *_resumed(injector, _LIMITS["hang"], CHECKPOINT_EVERY_STEPS, "rank 1 gave no sign of life"),
    ], injector


def _sigterm(fixture: Fixture, folder: Path, tell: Tell) -> tuple[list[Check], FaultInjector]:
    injector = FaultInjector(_AT_STEP, lambda seen: seen.signal_ranks(0, 1, number=signal.SIGTERM), tell)
    job = fixture.job_with(max_attempts=1)  # a preemption must not use up this attempt
    checks = _survived(fixture, folder, job, injector, LocalLauncher())
    ended = [event.time for event in injector.timeline.kind("ended")]
    saved = ended[0] - injector.damaged_at if ended and injector.damaged_at else float("inf")
    return [
        *checks,
        at_most("checkpoint saved and processes ended", saved, _SAVE_SECONDS, "s"),
        *_resumed(injector, _LIMITS["rank"], 0, "it saved a checkpoint and stopped after SIGTERM"),
    ], injector


def _corrupt_checkpoint(fixture: Fixture, folder: Path, tell: Tell) -> tuple[list[Check], FaultInjector]:
    damaged: list[int] = []

    def damage(seen: FaultInjector) -> None:
        seen.signal_ranks(1, number=signal.SIGKILL)
        seen.wait_until_ended()  # a checkpoint in progress may still be committed
        damaged.append(_damage_newest(folder, fixture.job))

    injector = FaultInjector(_AT_STEP, damage, tell)
    checks = _survived(fixture, folder, fixture.job, injector, LocalLauncher())
    resumed = [event.step for event in injector.timeline.kind("resumed")]
    return [
        *checks,
        equal(
            "resumed from the previous checkpoint, step",
            resumed[0] if resumed else 0,
            damaged[0] - CHECKPOINT_EVERY_STEPS,
        ),
        *_resumed(injector, _LIMITS["rank"], 2 * CHECKPOINT_EVERY_STEPS, "rank 1 was killed by SIGKILL"),
    ], injector


def _nan(fixture: Fixture, folder: Path, tell: Tell) -> tuple[list[Check], FaultInjector]:
    injector = FaultInjector(_AT_STEP, lambda _: None, tell)
    hyperparameters = fixture.job.hyperparameters | {"nan_after": _AT_STEP}
    job = replace(fixture.job, hyperparameters=hyperparameters)
    raised = "finished"
    try:
        injector.run(job, folder, LocalLauncher())
    except TrainingFailed as error:
        raised = type(error).__name__
        tell(str(error))
    newest = Checkpoints(folder, job.settings.keep_checkpoints, job.fingerprint).newest_good()
    return [
        equal("training ended with", raised, Diverged.__name__),
        equal("attempts (a retry would fail again)", injector.timeline.attempts, 1),
        equal("last step that was trained", injector.timeline.last_trained_step, _AT_STEP),
        equal(
            "newest complete checkpoint, step",
            newest or 0,
            _AT_STEP // CHECKPOINT_EVERY_STEPS * CHECKPOINT_EVERY_STEPS,
        ),
    ], injector


def _survived(
    fixture: Fixture,
    folder: Path,
    job: TrainingJob,
    injector: FaultInjector,
    launcher: LocalLauncher,
    attempts: int = 2,
) -> list[Check]:
    """Train to the end through the damage; return checks that rows and weights show no trace of it."""
    expected = fixture.undisturbed
    result = injector.run(job, folder, launcher)
    count = count_rows(folder, fixture.rows, fixture.steps_per_epoch)
    return [
        equal("attempts", result.attempts, attempts),
        equal("steps trained", result.steps, expected.steps),
        equal("rows trained twice in an epoch", sum(count.repeated.values()), 0),
        equal("rows left out", count.lost, 0),
        *_each_row_once(fixture, folder),
        equal(
            "weights equal those of an undisturbed training",
            result.weights_sha256[:16],
            expected.weights_sha256[:16],
        ),
    ]


def _each_row_once(fixture: Fixture, folder: Path) -> list[Check]:
    """Check each epoch's digest of rows against the training split: the same rows, each once."""
    split = digest([fixture.snapshot.read("train").row])
    epochs = learned_epochs(folder, fixture.steps_per_epoch)
    return [
        equal(f"digest of the rows of epoch {number + 1}", digest(epochs[number].rows)[:16], split[:16])
        for number in sorted(epochs)
    ]


def _resumed(injector: FaultInjector, seconds: float, steps: int, cause: str) -> list[Check]:
    """Check that the training recovered in time, repeated few steps, and recorded the cause."""
    records = injector.timeline.recoveries
    recorded = records[0].cause if records else "nothing"
    lost = records[0].steps_lost if records else -1
    repeated = records[0].rows_repeated if records else None
    return [
        at_most("damage to next trained step", injector.seconds_to_next_step(), seconds, "s"),
        at_most("steps repeated", lost, steps),
        Check(name="recorded cause", measured=recorded, wanted=f"{cause} …", ok=recorded.startswith(cause)),
        equal("recorded rows trained twice", "none" if repeated is None else repeated, 0),
    ]


def _damage_newest(folder: Path, job: TrainingJob) -> int:
    """Flip bits in the middle of each file of the newest good checkpoint, as a bad disk does; return its step."""
    checkpoints = Checkpoints(folder, job.settings.keep_checkpoints, job.fingerprint)
    step = checkpoints.newest_good()
    if step is None:
        raise TrainingFailed("the training had no complete checkpoint when the drill damaged it")
    for path in (folder / folder_of(step)).iterdir():
        if path.name != COMMIT:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 0xFF
            path.write_bytes(content)
    return step


DRILLS = {
    "kill-rank": Drill("one of 2 ranks is killed (SIGKILL)", _kill_rank),
    "kill-node": Drill("one of 2 machines is lost, with rank 0; the other trains alone until it returns", _kill_node),
    "hang": Drill("a rank hangs without an error (SIGSTOP); collectives would wait 120 s", _hang),
    "sigterm": Drill("all ranks get SIGTERM, as before a cloud provider takes a spot machine", _sigterm),
    "corrupt-checkpoint": Drill("the newest checkpoint is damaged, then a rank is killed", _corrupt_checkpoint),
    "nan": Drill("the model begins to return NaN", _nan),
}  # fmt: skip
