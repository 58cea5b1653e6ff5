"""Trainings are the same training exactly as long as no code that makes their weights changed."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ml_assets.components import TrainingPipeline
from ml_assets.model.steps.identity import training_code, training_job
from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.installation import component
from resources.job.job import TrainingJob

MODEL = """
import torch
from lineshop import parts

def make(width):
    def build(inputs):
        return torch.nn.Linear(len(inputs.numeric), width)
    return build

build = make(18)
"""


@pytest.fixture
def job_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TrainingJob]]:
    """The readings' training, with its model in a package of its own whose text a test edits."""
    folder = tmp_path / "lineshop"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def job(text: str = MODEL, parts: str = "SIDE = 1\n", **training: Any) -> TrainingJob:
        (folder / "model.py").write_text(text)
        (folder / "parts.py").write_text(parts)
        for name in [one for one in sys.modules if one.split(".")[0] == "lineshop"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        changes = {
            "model": {"function": "lineshop.model.build"},
            "training": readings_pipeline.PIPELINE["training"] | training,
        }
        spec = component(TrainingPipeline, readings_pipeline.PIPELINE, **changes).spec
        return training_job(spec, "2024-01-20", tmp_path, "0" * 64)

    yield job
    for name in [one for one in sys.modules if one.split(".")[0] == "lineshop"]:
        del sys.modules[name]


def test_another_argument_of_a_factory_is_another_training(job_of: Callable[..., TrainingJob]) -> None:
    """`build = make(18)` became `make(-500)`, and the old weights were reused and blessed."""
    before = job_of()
    assert job_of(MODEL.replace("18", "-500")).fingerprint != before.fingerprint
    assert job_of(parts="SIDE = 2\n").fingerprint != before.fingerprint
    assert job_of(f"# a comment\n{MODEL}").fingerprint == before.fingerprint
    bits = {job_of(determinism="bitwise", workers=count).fingerprint for count in (1, 2)}
    assert len(bits) == 1


def test_a_new_torch_is_another_training_and_a_new_tool_is_not(
    job_of: Callable[..., TrainingJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = job_of()
    assert {"python", "torch", "numpy"} <= before.packages.keys()
    assert "dagster" not in before.packages
    installed = tmp_path / "installed"
    monkeypatch.syspath_prepend(installed)
    _install(installed, "ruff")
    assert job_of().fingerprint == before.fingerprint
    _install(installed, "torch")
    after = job_of()
    assert after.packages["torch"] == "99.1"
    assert after.fingerprint != before.fingerprint


def _install(folder: Path, package: str) -> None:
    """Write the files by which others find a package's version."""
    place = folder / f"{package}-99.1.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 99.1+cpu\n")
    importlib.invalidate_caches()


def test_the_loop_is_part_of_a_training_and_what_only_tells_of_it_is_not() -> None:
    from ml_assets.foundation.code.code_version import reached_by
    from ml_assets.model.training.attempt.same_code import worker_modules

    reached = reached_by(*worker_modules("")).modules
    named = {name.removeprefix("ml_assets.model.training.") for name in reached}
    assert {
        "loop",
        "gradients",
        "data.order",
        "data.batches",
        "parallel.reduction",
        "parallel.layouts",
    } <= named
    assert {"step.load", "step.objectives"} <= named
    assert {
        "ml_assets.data.snapshots.split_reader",
        "checkpoint.initial",
        "data.preprocess",
    } <= named
    assert {"process.group", "node.agent"} <= named
    assert not {name for name in named if name.startswith(("telemetry.", "attempt."))}
    assert "process.heartbeat" not in named
    assert not any(name.startswith("resources") for name in named)
    spec = component(TrainingPipeline, readings_pipeline.PIPELINE).spec
    assert re.fullmatch("[0-9a-f]{16}", training_code(spec).loop_version)


def test_a_model_that_imports_by_a_computed_name_is_refused(
    job_of: Callable[..., TrainingJob],
) -> None:
    """Refused when the declaration is read, before anything runs."""
    with pytest.raises(
        ValidationError, match=r"model\.py:4 uses import_module with a name that is only known at run"
    ):
        job_of(
            "from importlib import import_module\n\ndef build(inputs):\n    return import_module(inputs).f()\n"
        )


def test_a_library_is_part_of_the_training_of_a_script_that_uses_it_alone() -> None:
    """Converters import LightGBM, XGBoost and scikit-learn; a torch model does not train anew with another of them."""

    def packages(**model: str) -> set[str]:
        change = {"model": model, "training": {"workers": 1}}
        return set(
            training_code(component(TrainingPipeline, readings_pipeline.PIPELINE, **change).spec).packages
        )

    libraries = {"lightgbm", "onnxmltools", "scikit-learn", "skl2onnx"}
    assert libraries <= packages(script="ml_assets_tests.scripts.trees_adapted")
    assert not libraries & packages(script="ml_assets_tests.scripts.ddp_adapted")
    assert not (libraries | {"onnx", "onnxruntime"}) & packages(
        function=readings_pipeline.PIPELINE["model"]["function"]
    )
