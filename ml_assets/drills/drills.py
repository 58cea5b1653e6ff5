"""The drills: what is done to a training, and what must hold afterwards.

Adding one is adding a function and an entry in `DRILLS`. Not here: the training they damage (scene).
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ml_assets.drills.machines import COMMAND, RANKS, bring_machine, kill_machine, set_up
from ml_assets.drills.report import Check, Report, at_most, equal
from ml_assets.drills.scene import CHECKPOINT_STEPS, Scene
from ml_assets.drills.witness import Witness
from ml_assets.training.checkpoint.checkpoints import Checkpoints, folder_of
from ml_assets.training.checkpoint.commit import COMMIT
from ml_assets.training.data.digest import digest
from ml_assets.training.data.rowlog import count_rows, learned_epochs
from resources.job.errors import Diverged, TrainingFailed
from resources.job.job import TrainingJob
from resources.launcher.local import LocalLauncher

_AT_STEP = 57
"""Step in the middle of the second epoch, and between two checkpoints."""
_BACK_AT_STEP = 85
"""Step in the third epoch: a machine that was lost is there again."""
_HANG_SECONDS = 3.0
_LIMITS = {"rank": 8.0, "machine": 12.0, "hang": _HANG_SECONDS + 8.0}
"""Seconds to the next trained step."""
_SAVE_SECONDS = 30.0
_GROW_SECONDS = 30.0
"""To save, to leave, and to start more processes than before."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Drill:
    """One rehearsal."""

    story: str
    perform: Callable[[Scene, Path, Tell], tuple[list[Check], Witness]]


def perform(name: str, scene: Scene, tell: Tell) -> Report:
    """Do the drill `name` in `scene`. `tell` gets what happens as it does."""
    return rehearse(name, DRILLS[name], scene, tell)


def rehearse(name: str, drill: Drill, scene: Scene, tell: Tell) -> Report:
    """Do a drill, in a folder of its `name`."""
    folder = scene.folder / name
    folder.mkdir()
    began = time.monotonic()
    checks, witness = drill.perform(scene, folder, tell)
    return Report(
        drill=name,
        story=drill.story,
        seconds=round(time.monotonic() - began, 1),
        checks=tuple(checks),
        recoveries=tuple(recovery.in_words() for recovery in witness.recoveries),
    )


def _kill_rank(scene: Scene, folder: Path, tell: Tell) -> tuple[list[Check], Witness]:
    witness = Witness(_AT_STEP, lambda seen: seen.end(1, by=signal.SIGKILL), tell)
    return [
        *_survived(scene, folder, scene.job, witness, LocalLauncher()),
        *_resumed(witness, _LIMITS["rank"], CHECKPOINT_STEPS, "rank 1 was ended by SIGKILL"),
    ], witness


def lose_machine(
    scene: Scene, folder: Path, tell: Tell, machines: int, seconds: float
) -> tuple[list[Check], Witness]:
    """The first of several machines is lost, and the others are to train again within `seconds`; later it is there
    again, and all of them are to train."""
    set_up(folder, machines)
    lost = "machine-0"
    witness = Witness(
        _AT_STEP,
        lambda _: kill_machine(folder, lost),
        tell,
        mend_at_step=_BACK_AT_STEP,
        mend=lambda: bring_machine(folder, lost),
    )
    most, fewer = machines * RANKS, (machines - 1) * RANKS
    job, launcher = scene.job_with(workers=most, max_attempts=2), LocalLauncher(command=COMMAND)
    checks = _survived(scene, folder, job, witness, launcher, attempts=3)
    sizes = [event.values["world_size"] for event in witness.events if event.kind == "started"]
    grown = witness.recoveries[1].steps_lost if len(witness.recoveries) > 1 else -1
    return [
        *checks,
        equal("workers, by attempt", ", ".join(map(str, sizes)), f"{most}, {fewer}, {most}"),
        *_resumed(witness, seconds, CHECKPOINT_STEPS, "a rank of another node was lost"),
        at_most("back to next trained step", witness.seconds_to_step_after_mending(), _GROW_SECONDS, "s"),
        equal("steps done again to grow", grown, 0),
    ], witness


def _kill_node(scene: Scene, folder: Path, tell: Tell) -> tuple[list[Check], Witness]:
    return lose_machine(scene, folder, tell, machines=2, seconds=_LIMITS["machine"])


def _hang(scene: Scene, folder: Path, tell: Tell) -> tuple[list[Check], Witness]:
    witness = Witness(_AT_STEP, lambda seen: seen.end(1, by=signal.SIGSTOP), tell)
    job = scene.job_with(heartbeat_timeout_seconds=_HANG_SECONDS)
    return [
        *_survived(scene, folder, job, witness, LocalLauncher()),
        *_resumed(witness, _LIMITS["hang"], CHECKPOINT_STEPS, "rank 1 gave no sign of life"),
    ], witness


def _sigterm(scene: Scene, folder: Path, tell: Tell) -> tuple[list[Check], Witness]:
    witness = Witness(_AT_STEP, lambda seen: seen.end(0, 1, by=signal.SIGTERM), tell)
    job = scene.job_with(max_attempts=1)  # a preemption must not use it up
    checks = _survived(scene, folder, job, witness, LocalLauncher())
    ended = [event.time for event in witness.events if event.kind == "ended"]
    saved = ended[0] - witness.damaged_at if ended and witness.damaged_at else float("inf")
    return [
        *checks,
        at_most("saved and out", saved, _SAVE_SECONDS, "s"),
        *_resumed(witness, _LIMITS["rank"], 0, "it was asked to stop (SIGTERM)"),
    ], witness


def _corrupt_checkpoint(scene: Scene, folder: Path, tell: Tell) -> tuple[list[Check], Witness]:
    damaged: list[int] = []

    def damage(seen: Witness) -> None:
        seen.end(1, by=signal.SIGKILL)
        seen.wait_until_ended()  # one that was being written may still have become whole
        damaged.append(_damage_newest(folder, scene.job))

    witness = Witness(_AT_STEP, damage, tell)
    checks = _survived(scene, folder, scene.job, witness, LocalLauncher())
    resumed = [event.step for event in witness.events if event.kind == "resumed"]
    return [
        *checks,
        equal("went on from the one before", resumed[0] if resumed else 0, damaged[0] - CHECKPOINT_STEPS),
        *_resumed(witness, _LIMITS["rank"], 2 * CHECKPOINT_STEPS, "rank 1 was ended by SIGKILL"),
    ], witness


def _nan(scene: Scene, folder: Path, tell: Tell) -> tuple[list[Check], Witness]:
    witness = Witness(_AT_STEP, lambda _: None, tell)
    hyperparameters = scene.job.hyperparameters | {"nan_after": _AT_STEP}
    job = replace(scene.job, hyperparameters=hyperparameters)
    raised = "finished"
    try:
        witness.run(job, folder, LocalLauncher())
    except TrainingFailed as error:
        raised = type(error).__name__
        tell(str(error))
    newest = Checkpoints(folder, job.settings.keep_checkpoints, job.fingerprint).newest_good()
    return [
        equal("training ended with", raised, Diverged.__name__),
        equal("attempts (another would end the same way)", witness.attempts, 1),
        equal("last step that was trained", max(_trained(witness)), _AT_STEP),
        equal("newest whole checkpoint, step", newest or 0, _AT_STEP // CHECKPOINT_STEPS * CHECKPOINT_STEPS),
    ], witness


def _survived(
    scene: Scene,
    folder: Path,
    job: TrainingJob,
    witness: Witness,
    launcher: LocalLauncher,
    attempts: int = 2,
) -> list[Check]:
    """Train to the end through the damage; nothing of it may be seen in rows and weights."""
    expected = scene.unbroken
    result = witness.run(job, folder, launcher)
    count = count_rows(folder, scene.rows, scene.steps_per_epoch)
    return [
        equal("attempts", result.attempts, attempts),
        equal("steps trained", result.steps, expected.steps),
        equal("rows learned twice in an epoch", sum(count.repeated.values()), 0),
        equal("rows left out", count.lost, 0),
        *_each_row_once(scene, folder),
        equal("weights as if nothing had happened", result.weights_sha256[:16], expected.weights_sha256[:16]),
    ]


def _each_row_once(scene: Scene, folder: Path) -> list[Check]:
    """The rows of each epoch have the digest of the training split: these rows, each once."""
    split = digest([scene.snapshot.read("train").row])
    epochs = learned_epochs(folder, scene.steps_per_epoch)
    return [
        equal(f"digest of the rows of epoch {number + 1}", digest(epochs[number].rows)[:16], split[:16])
        for number in sorted(epochs)
    ]


def _resumed(witness: Witness, seconds: float, steps: int, cause: str) -> list[Check]:
    """Fast enough, with little done again, and on record with its cause."""
    records = witness.recoveries
    recorded = records[0].cause if records else "nothing"
    lost = records[0].steps_lost if records else -1
    repeated = records[0].rows_repeated if records else None
    return [
        at_most("damage to next trained step", witness.seconds_to_next_step(), seconds, "s"),
        at_most("steps done again", lost, steps),
        Check(name="cause on record", measured=recorded, wanted=f"{cause} …", ok=recorded.startswith(cause)),
        equal("rows repeated, on record", "none" if repeated is None else repeated, 0),
    ]


def _damage_newest(folder: Path, job: TrainingJob) -> int:
    """Turn bits in the middle of each file of the newest whole checkpoint, as a bad disk does; its step."""
    checkpoints = Checkpoints(folder, job.settings.keep_checkpoints, job.fingerprint)
    step = checkpoints.newest_good()
    if step is None:
        raise TrainingFailed("no checkpoint was whole when the training was damaged")
    for path in (folder / folder_of(step)).iterdir():
        if path.name != COMMIT:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 0xFF
            path.write_bytes(content)
    return step


def _trained(witness: Witness) -> list[int]:
    return [event.step for event in witness.events if event.kind == "metrics"] or [0]


DRILLS = {
    "kill-rank": Drill("one of 2 ranks is killed (SIGKILL)", _kill_rank),
    "kill-node": Drill("one of 2 machines is lost, with rank 0; the other goes on until it comes back", _kill_node),
    "hang": Drill("a rank stops and says nothing (SIGSTOP); collectives would wait 120 s", _hang),
    "sigterm": Drill("all ranks are asked to leave (SIGTERM), as before a spot machine goes", _sigterm),
    "corrupt-checkpoint": Drill("the newest checkpoint is damaged, then a rank is killed", _corrupt_checkpoint),
    "nan": Drill("the model begins to give NaN", _nan),
}  # fmt: skip
