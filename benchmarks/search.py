"""Search on `flight_delay`: epochs that the pruner saves, the loss that it costs, and the overhead of a study.

Three ways from the same days of flights: the declared study of 24 trials; the same study without a pruner, in which
only early stopping ends a trial (the full search); and the trainings of that full search, each launched by hand.

Trials have 8 epochs, not the 4 of the declaration: after 1, 2 and 4 epochs successive halving can save two thirds of 8,
but only half of 4. `make bench ARGS=search` takes about 23 minutes on two idle cores. On a busy machine the overhead
means nothing. `--quick` runs all parts on a month with 4 trials in a few minutes; its bars mean nothing.
"""

import dataclasses
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from _report import Result, emit, parse_args

from ml_assets.cli.project import Project
from ml_assets.components import TrainingPipeline
from ml_assets.components.declared_metadata import declared_tables
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.pipeline.spec import WindowSection
from ml_assets.pipeline.tune import run_study
from ml_assets.tuning.spec import Pruner, TuningSection
from ml_assets.tuning.study_report import costs
from ml_assets.tuning.study_result import StudyResult
from resources.job.job import TrainingJob
from resources.launcher.local import LocalLauncher
from resources.settings import Settings

MODEL = "flight_delay"
REFERENCE = ("datasets/airlines", "datasets/airports", "datasets/planes")
DATED = ("datasets/flights", "datasets/weather", "features/flight_departures")
MOST_EPOCHS, MOST_WORSE, MOST_OVERHEAD = 0.4, 1.01, 1.05
"""Share of the full search's epochs; best loss over that of the full search; time over that of the trainings alone."""
EPOCHS = 8
"""Full budget of a trial."""
QUICK = WindowSection(train=14, validation=3, holdout=3)
QUICK_TRIALS = 4


@dataclass(frozen=True, kw_only=True)
class Search:
    """Finished study."""

    result: StudyResult
    seconds: float
    """Wall time from the start of its first trial to the stored report."""
    home: Path

    @property
    def epochs_used(self) -> float:
        """Share of all epochs of all trials that it trained."""
        epochs = costs(self.result)[0]
        assert epochs.full is not None  # the model is no script
        return epochs.spent / epochs.full

    @property
    def loss(self) -> float:
        """Validation loss of the chosen trial."""
        return self.result.chosen.validation_loss or 0.0


class FirstTrial:
    """Reporter that only notes when the first trial began."""

    began = 0.0

    def info(self, text: str) -> None:
        """Ignore a message."""

    def warning(self, text: str) -> None:
        """Ignore a warning."""

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


def search(home: Path, pruner: Pruner | None, *, quick: bool) -> Search:
    """Run the declared study in `home`, with another pruner if `pruner` is given."""
    project = Project(Settings(home=home))
    spec, tuning = _declared(project, quick=quick)
    if pruner is not None:
        tuning = tuning.model_copy(update={"pruner": pruner})
    page = FirstTrial()
    stored = run_study(
        spec, tuning, project.platform, declared_tables(project.defs), page, run_id="benchmark", resources={}
    )
    return Search(result=stored.report.result, seconds=time.perf_counter() - page.began, home=home)


def _declared(project: Project, *, quick: bool) -> tuple[TrainingPipelineSpec, TuningSection]:
    spec = project.component(TrainingPipeline, MODEL).spec
    spec = spec.model_copy(update={"training": dataclasses.replace(spec.training, epochs=EPOCHS)})
    assert spec.tuning is not None
    if not quick:
        return spec, spec.tuning
    nightly = project.component(TrainingPipeline, f"{MODEL}_nightly").spec
    short = spec.model_copy(update={"window": QUICK, "partitions": nightly.partitions})
    return short, spec.tuning.model_copy(update={"trials": QUICK_TRIALS})


def by_hand(made: Search, folder: Path) -> float:
    """Train the jobs of a study again, one after the other; return the seconds."""
    files = (made.home / "artifacts" / "training" / MODEL).glob("*/job.json")
    jobs = [TrainingJob.from_json(file.read_text()) for file in files]
    assert len(jobs) == len(made.result.trials)
    began = time.perf_counter()
    for number, job in enumerate(jobs):
        LocalLauncher().run(job, folder / f"{number}", lambda event: None, lambda line: None)
    return time.perf_counter() - began


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    arguments = parse_args(__doc__)
    with tempfile.TemporaryDirectory() as name:
        homes = [Path(name) / way for way in ("pruned", "full")]
        say("ingests flights and weather")
        ingest(homes[0], "2013-01-31" if arguments.quick else "2013-12-31")
        # Each study has its own home: a study finds the trainings of another one, and would not train them.
        shutil.copytree(homes[0], homes[1])
        say("study with the declared pruner")
        pruned = search(homes[0], None, quick=arguments.quick)
        say("full search")
        full = search(homes[1], "none", quick=arguments.quick)
        say("the trainings of the full search by hand")
        alone = by_hand(full, Path(name) / "by-hand")
        say("done")
    trials = f"{len(full.result.trials)} trials"
    results = [
        Result(
            name=f"share of all epochs that {trials} of {EPOCHS} epochs train (pruner {pruned.result.pruner})",
            value=pruned.epochs_used,
            unit="of the epochs",
            peers={"early stopping only": full.epochs_used},
            ratio=pruned.epochs_used / full.epochs_used,
            bar=f"≤ {MOST_EPOCHS:g} of all epochs",
            ok=pruned.epochs_used <= MOST_EPOCHS,
        ),
        Result(
            name="best validation loss of that study",
            value=pruned.loss,
            unit="logloss",
            peers={"full search": full.loss},
            ratio=pruned.loss / full.loss,
            bar=f"≤ {MOST_WORSE:g} × full search",
            ok=pruned.loss <= MOST_WORSE * full.loss,
        ),
        Result(
            name=f"study of {trials}, none pruned",
            value=full.seconds,
            unit="s",
            peers={"the same trainings by hand": alone},
            ratio=full.seconds / alone,
            bar=f"≤ {MOST_OVERHEAD:g} × by hand",
            ok=full.seconds <= MOST_OVERHEAD * alone,
        ),
    ]
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
