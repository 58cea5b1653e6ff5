"""One study in several processes at once, which train the same trials: each goes on to the end with equal outcomes."""

import json
from dataclasses import asdict
from pathlib import Path

from optuna.storages import InMemoryStorage

from ml_assets.extras.tuning.study import Study
from ml_assets_tests.tuning.processes.study_worker import EPOCHS, FACTS, SECTION, run, together


def test_several_processes_run_one_study_to_its_end(tmp_path: Path) -> None:
    """Each reads the record of a trial and writes to it in one turn: nobody writes to a trial that another ended."""
    alone = run(Study(InMemoryStorage(), "shop-1", SECTION, 7, FACTS, EPOCHS))
    expected = json.loads(json.dumps([asdict(one) for one in alone]))
    assert together(tmp_path, 3, {}) == [expected] * 3
