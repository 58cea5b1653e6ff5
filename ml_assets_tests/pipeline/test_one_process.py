"""`workers: 2` for a library of one process is refused when the file is read; a script that may share work never is."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from ml_assets.components import TrainingPipeline
from ml_assets.model.steps.declared_functions import one_process_library
from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.installation import component

ALONE = """
import os
import lightgbm, numpy as np
from sklearn.metrics import log_loss
from ml_assets.model.training.script import attach
from solo import parts

os.environ["OMP_NUM_THREADS"] = os.environ.get("THREADS", "4")
training = attach()
x, y = training.matrix("train")
booster = lightgbm.train(parts.OPTIONS | {"max_leaf_nodes": 31}, lightgbm.Dataset(x, y), 10)
training.finish(booster, steps=10, validation_loss=log_loss(y, booster.predict(x)))
"""


@pytest.fixture
def library_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str | None]:
    """`(text of a script, text of a module it imports) -> library`."""
    folder = tmp_path / "solo"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def found(text: str = ALONE, parts: str = "OPTIONS = {}\n") -> str | None:
        (folder / "train.py").write_text(text)
        (folder / "parts.py").write_text(parts)
        importlib.invalidate_caches()
        return one_process_library("solo.train")

    return found


def test_a_script_whose_workers_all_do_the_same_is_known_by_its_library(
    library_of: Callable[..., str | None],
) -> None:
    assert library_of() == "lightgbm"
    assert library_of(parts='"""Parts for each rank of the platform."""\nOPTIONS = {}\n') == "lightgbm"
    assert one_process_library("ml_assets.defs.flights.flight_delay_trees.train") == "lightgbm"
    assert one_process_library("ml_assets_tests.scripts.trees_adapted") == "sklearn"
    assert one_process_library("ml_assets_tests.scripts.ddp_adapted") is None


@pytest.mark.parametrize(
    "added",
    [
        "import torch",
        "from accelerate import Accelerator",
        "import dask.distributed",
        "import socket",
        "import subprocess",
        "part = x[training.rank :: training.world_size]",
        "options = {'machines': '10.0.0.1:12400,10.0.0.2:12400'}",
        "me = os.environ['RANK']",
        "me = os.getenv('LOCAL_RANK')",
        "me = os.environ['RA' + 'NK']",
        "everything = dict(os.environ)",
        "from os import environ as e",
        "from xgboost import collective",
        "import my_unknown_package",
        "me = getattr(os, 'get' + 'pid')()",
        "me = os.getpid()",
        "open('taken', 'x', opener=os.open) if not os.listdir('.') else None",
        "def part(rank: int) -> None: ...",
    ],
)
def test_a_script_that_may_share_its_work_is_never_refused(
    library_of: Callable[..., str | None], added: str
) -> None:
    assert library_of(ALONE.replace("training = attach()", f"training = attach()\n{added}")) is None
    if "training." not in added:
        assert library_of(parts=f"import os\n{added}\nOPTIONS = {{}}\n") is None


def test_two_workers_for_a_one_process_library_are_refused_on_load() -> None:
    """Refused when the file is read, before anything runs."""
    model = {"script": "ml_assets_tests.scripts.trees_adapted", "hyperparameters": {}}
    with pytest.raises(ValidationError) as refused:
        component(TrainingPipeline, readings_pipeline.PIPELINE, model=model, training={"workers": 2})
    (error,) = refused.value.errors()
    assert error["loc"] == ("training", "workers")
    assert "2 workers would each" in error["msg"]
    assert "with sklearn in one" in error["msg"]
    assert "Set workers: 1" in error["msg"]
    component(TrainingPipeline, readings_pipeline.PIPELINE, model=model, training={"workers": 1})
    model["script"] = "ml_assets_tests.scripts.ddp_adapted"
    component(TrainingPipeline, readings_pipeline.PIPELINE, model=model, training={"workers": 2})
