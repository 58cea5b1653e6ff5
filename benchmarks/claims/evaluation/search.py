"""Search on `flight_delay`: epochs that the pruner saves, the loss that it costs, and the overhead of a study.

The declared study of 24 trials runs with its pruner. Then each paused trial trains on to its end, by hand. A continued
trial equals an uninterrupted one bit for bit, so these are the same 24 trials, each trained in full: what the pruner
saved and what it cost follow from one run. Full budget: all epochs of all trials. Early stopping alone: the epochs that
the 24 trials train in full. Regret of the choice: its loss over the lowest of the 24.

Overhead: seconds of the study outside the launches of its trainings (records, draws, pruner, MLflow, report), over the
seconds of the same 24 trainings by hand. These are the launches, which a person would run as they are, without the
seconds in which workers of a paused trial end, and with the training loops of the continued parts. Callbacks count as
the study's, those of the epochs that it trained, though the workers train on meanwhile. All is measured in
one run, so other work on the machine slows both sides, and the ratio stands. The overhead over the launches of the
pruned study alone is printed besides.

Trials have 8 epochs, not the 4 of the declaration: after 1, 2 and 4 epochs successive halving can save two thirds of 8,
but only half of 4. `--studies N` repeats all with N seeds; bars then hold for the mean. `--quick` runs a month with 4
trials in a few minutes; its bars mean nothing.
"""

import argparse
import dataclasses
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from benchmarks._report import Result, emit
from ml_assets.components.metadata import declared_tables
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.context.project import Project
from ml_assets.extras.tuning.study_report import costs, render
from ml_assets.extras.tuning.tune import run_study
from ml_assets.model.steps.search_space import TuningSection
from ml_assets.model.steps.spec import WindowSection
from ml_assets.model.steps.study_result import StudyResult
from resources.job.events import JOB, TrainingEvent
from resources.job.job import TrainingJob, TrainingResult
from resources.launcher.local import LocalLauncher
from resources.launcher.protocol import nobody_comes_back
from resources.launcher.resource_profile import ResourceProfile
from resources.platform import Platform
from resources.settings import Settings

MODEL = "flight_delay"
REFERENCE = ("datasets/airlines", "datasets/airports", "datasets/planes")
DATED = ("datasets/flights", "datasets/weather", "features/flight_departures")
MOST_EPOCHS, MOST_WORSE, MOST_OVERHEAD = 0.4, 1.01, 1.05
"""Share of all epochs; loss of the choice over the lowest of all; time with the study over that of the trainings."""
EPOCHS = 8
"""Full budget of a trial."""
QUICK = WindowSection(train=14, validation=3, holdout=3)
QUICK_TRIALS = 4


@dataclass
class Clock:
    """Seconds inside launches, without the callbacks of their caller."""

    launches: float = 0.0
    pauses: float = 0.0
    """Seconds of launches after a callback raised: the workers save and end."""
    callbacks: float = 0.0
    """Seconds of callbacks about events of the workers, outside of `launches`."""


@dataclass(frozen=True)
class TimedLauncher(LocalLauncher):
    """Launcher of the platform, with a clock."""

    clock: Clock = field(default_factory=Clock)

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
        """Train as `LocalLauncher` does."""
        began, outside, raised = time.perf_counter(), 0.0, 0.0

        def hear(event: TrainingEvent) -> None:
            nonlocal outside, raised
            start = time.perf_counter()
            try:
                on_event(event)
            except BaseException:
                raised = time.perf_counter()
                raise
            finally:
                outside += time.perf_counter() - start

        try:
            return super().run(job, folder, hear, on_log, profile, run_id, comes_back)
        finally:
            ended = time.perf_counter()
            self.clock.launches += ended - began - outside
            self.clock.callbacks += outside
            self.clock.pauses += ended - raised if raised else 0.0


class TimedPlatform(Platform):
    """Embedded platform whose launcher has a clock."""

    @cached_property
    def launcher(self) -> TimedLauncher:
        """Launcher of this machine."""
        return TimedLauncher()


@dataclass(frozen=True, kw_only=True)
class Search:
    """Finished study, and its trials trained in full."""

    result: StudyResult
    seconds: float
    """Wall time from the start of its first trial to the stored report."""
    clock: Clock
    """Parts of that time."""
    ends: Mapping[int, TrainingResult]
    """Number of a trial → its training, continued to its end."""

    @property
    def full_budget(self) -> int:
        """All epochs of all trials."""
        epochs = costs(self.result)[0]
        assert epochs.full is not None  # the model is no script
        return round(epochs.full)

    @property
    def epochs_used(self) -> float:
        """Share of the full budget that the study trained."""
        return costs(self.result)[0].spent / self.full_budget

    @property
    def epochs_stopped_early(self) -> float:
        """Share of the full budget that the trials train in full, when only early stopping ends them."""
        return sum(one.epochs for one in self.ends.values()) / self.full_budget

    @property
    def overhead(self) -> float:
        """Seconds outside of the launches, and in callbacks."""
        return self.seconds - self.clock.launches

    @property
    def by_hand(self) -> float:
        """Seconds of the same trainings, each from its start to its end without a pause."""
        continued = sum(
            max(0.0, self.ends[one.number].seconds - one.seconds)
            for one in self.result.trials
            if one.state == "paused"
        )
        return self.clock.launches - self.clock.pauses + continued

    @property
    def loss(self) -> float:
        """Validation loss of the chosen trial."""
        return self.result.chosen.validation_loss or 0.0

    @property
    def lowest(self) -> float:
        """Lowest validation loss of all trials, each trained in full."""
        return min(one.best_validation_loss for one in self.ends.values())


class FirstTrial:
    """Reporter that only notes when the first trial began."""

    began = 0.0

    def info(self, text: str) -> None:
        """Print a message."""
        say(text)

    def warning(self, text: str) -> None:
        """Print a warning."""
        say(text)

    def observe(self, step: int, numbers: Mapping[str, float]) -> None:
        """Ignore metrics."""

    def of_trial(self, number: int) -> "FirstTrial":
        """Note the time of the first trial."""
        self.began = self.began or time.perf_counter()
        return self


def say(text: str) -> None:
    """Print a line of progress, with the time, to standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def ingest(home: Path, last: str) -> None:
    """Publish flights, weather and features from New Year to `last` into an empty home."""
    program = Path(sys.executable).with_name("ml-assets")
    for table in (*REFERENCE, *DATED):
        days = [f"2013-01-01..{last}"] if table in DATED else []
        environment = {"ML_ASSETS_HOME": str(home), "PATH": "/usr/bin:/bin", "HOME": str(home)}
        subprocess.run(
            [program, "launch", table, *days], env=environment, stdout=subprocess.DEVNULL, check=True
        )


def search(home: Path, more_seed: int, *, quick: bool, report: Path | None) -> Search:
    """Run the declared study in `home` with `more_seed` added to its seed, then all its trials to their ends."""
    project = Project(Settings(home=home))
    platform = TimedPlatform(project.settings)
    spec, tuning = _declared(project, quick=quick)
    spec = spec.model_copy(update={"seed": spec.seed + more_seed})
    page = FirstTrial()
    stored = run_study(
        spec, tuning, platform, declared_tables(project.defs), page, run_id="benchmark", resources={}
    )
    seconds, clock = time.perf_counter() - page.began, dataclasses.replace(platform.launcher.clock)
    if report is not None:
        report.write_text(render(stored.report))
    result = stored.report.result
    say("trains the paused trials to their ends")
    return Search(
        result=result,
        seconds=seconds,
        clock=clock,
        ends=_trained_in_full(result, home),
    )


def _declared(project: Project, *, quick: bool) -> tuple[TrainingPipelineSpec, TuningSection]:
    spec = project.declared.pipeline(MODEL)
    spec = spec.model_copy(update={"training": dataclasses.replace(spec.training, epochs=EPOCHS)})
    assert spec.tuning is not None
    if not quick:
        return spec, spec.tuning
    nightly = project.declared.pipeline(f"{MODEL}_nightly")
    short = spec.model_copy(update={"window": QUICK, "partitions": nightly.partitions})
    return short, spec.tuning.model_copy(update={"trials": QUICK_TRIALS})


def _trained_in_full(result: StudyResult, home: Path) -> dict[int, TrainingResult]:
    """Continue each trial to its end by hand; a finished one has its result already."""
    files = (home / "artifacts" / "training" / MODEL).glob(f"*/{JOB}")
    jobs = {
        (job := TrainingJob.from_json(file.read_text())).fingerprint: (job, file.parent) for file in files
    }
    ends: dict[int, TrainingResult] = {}
    for one in result.trials:
        if one.state == "failed":
            continue
        job, folder = jobs[one.fingerprint]
        ends[one.number] = LocalLauncher().run(job, folder, lambda event: None, lambda line: None)
        end = ends[one.number]
        say(
            f"trial {one.number}: {one.state} after {one.epochs} epochs, in full {end.epochs} epochs, "
            f"loss {end.best_validation_loss:.6g}"
        )
    return ends


def _in_words(made: Search) -> str:
    return (
        f"{made.result.name}: trained {made.epochs_used:.1%} of {made.full_budget} epochs, early stopping alone "
        f"{made.epochs_stopped_early:.1%}; loss {made.loss:.6g}, lowest {made.lowest:.6g} "
        f"({made.loss / made.lowest - 1:+.2%}); {made.seconds:.1f} s, {made.clock.launches:.1f} s in launches "
        f"({made.seconds / made.clock.launches - 1:+.2%}), {made.clock.pauses:.1f} s of them while workers of paused "
        f"trials ended, {made.clock.callbacks:.1f} s in callbacks; the trainings by hand {made.by_hand:.1f} s, "
        f"{made.overhead:.1f} s more with the study ({made.overhead / made.by_hand:+.2%})"
    )


def results_of(made: list[Search]) -> list[Result]:
    """Return the claims, as means over studies."""

    def mean(of: Callable[[Search], float]) -> float:
        return statistics.fmean(of(one) for one in made)

    trials = f"{len(made[0].result.trials)} trials"
    used, early = mean(lambda one: one.epochs_used), mean(lambda one: one.epochs_stopped_early)
    worse = mean(lambda one: one.loss / one.lowest)
    by_hand = mean(lambda one: one.by_hand)
    with_study = by_hand + mean(lambda one: one.overhead)
    return [
        Result(
            name=f"share of all epochs that {trials} of {EPOCHS} epochs train (pruner {made[0].result.pruner})",
            value=used,
            unit="of the epochs",
            peers={"early stopping only": early},
            ratio=used / early,
            bar=f"≤ {MOST_EPOCHS:g} of all epochs",
            ok=used <= MOST_EPOCHS,
        ),
        Result(
            name="validation loss of the chosen trial",
            value=mean(lambda one: one.loss),
            unit="logloss",
            peers={"lowest of the same trials in full": mean(lambda one: one.lowest)},
            ratio=worse,
            bar=f"≤ {MOST_WORSE:g} × lowest",
            ok=worse <= MOST_WORSE,
        ),
        Result(
            name=f"{trials} in full, with the study's own time",
            value=with_study,
            unit="s",
            peers={"the same trainings by hand": by_hand},
            ratio=with_study / by_hand,
            bar=f"≤ {MOST_OVERHEAD:g} × by hand",
            ok=with_study <= MOST_OVERHEAD * by_hand,
        ),
    ]


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a month of flights and 4 trials")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    parser.add_argument("--studies", type=int, default=1, help="number of studies, each with another seed")
    parser.add_argument("--report", type=Path, help="file for the report of the first study, HTML")
    arguments = parser.parse_args()
    made: list[Search] = []
    with tempfile.TemporaryDirectory() as name:
        say("ingests flights and weather")
        ingest(Path(name), "2013-01-31" if arguments.quick else "2013-12-31")
        for number in range(arguments.studies):
            say(f"study {number + 1} of {arguments.studies}")
            report = arguments.report if number == 0 else None
            made.append(search(Path(name), number, quick=arguments.quick, report=report))
            say(_in_words(made[-1]))
    return emit(results_of(made), json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
