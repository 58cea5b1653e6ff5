"""One of several processes that run a study at once: `python study_worker.py HOME NAME PROCESSES NUMBER`.

Real processes, storage and turns; the losses of a trial follow from its number. Prints the outcomes as JSON.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ml_assets.extras.tuning.study import Study, StudyFacts
from ml_assets.model.steps.search_space import TuningSection
from ml_assets.model.steps.study_result import TrialOutcome
from resources.platform import Platform
from resources.settings import Settings

SECTION = TuningSection.model_validate(
    {
        "space": {"hyperparameters": {"hidden": {"kind": "int", "low": 8, "high": 128}}},
        "sampler": "random",
        "pruner": "successive_halving",
        "trials": 8,
    }
)
FACTS = StudyFacts(model="shop", partition="2024-01-20", snapshot="2" * 64, decided_by={})
EPOCHS = 27


def run(study: Study) -> list[TrialOutcome]:
    """Train trials until the study is complete, together with other processes or alone."""
    while (trial := study.next()) is not None:
        low = 0.1 + 0.37 * trial.number % 1
        common: dict[str, Any] = {"number": trial.number, "parameters": trial.parameters}
        for epoch in range(1, EPOCHS + 1):
            loss = low + 1 / epoch
            if study.should_pause(trial, epoch, loss) and epoch < EPOCHS:
                common["pauses"] = (epoch,)
                study.end(trial, TrialOutcome(**common, state="paused", validation_loss=loss))
                break
        else:
            study.end(trial, TrialOutcome(**common, state="finished", validation_loss=loss))
    return study.outcomes()


def opened(platform: Platform, name: str) -> Study:
    """Open the study as `pipeline.tune` does."""
    with platform.ledger.turn("studies"):
        turn = partial(platform.ledger.turn, f"studies/{name}")
        return Study(platform.studies, name, SECTION, 7, FACTS, EPOCHS, turn=turn)


def together(home: Path, processes: int, environment: dict[str, str]) -> list[list[dict[str, Any]]]:
    """Run the study in several processes that begin at once; return the outcomes that each of them saw."""
    command = [sys.executable, __file__, str(home), "shop-1", str(processes)]
    running = [
        subprocess.Popen(
            [*command, str(number)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    said = [one.communicate() for one in running]
    assert [one.returncode for one in running] == [0] * processes, said
    return [json.loads(out) for out, _ in said]


def main() -> None:
    """Wait until all processes have opened the study, then run it."""
    home, name, processes, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    study = opened(Platform(Settings(home=home, author="ada")), name)
    begun = home / "begun"
    begun.mkdir(exist_ok=True)
    (begun / number).touch()
    while len(list(begun.iterdir())) < processes:
        time.sleep(0.01)
    print(json.dumps([asdict(one) for one in run(study)]))


if __name__ == "__main__":
    main()
