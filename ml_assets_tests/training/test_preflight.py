"""Models that can never train, or not to the same bits, are refused before the first step, by their own sentence."""

from pathlib import Path

import pytest
import torch

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.data.prefetcher import Prefetcher
from ml_assets.model.training.gradients import gradients_of
from ml_assets.model.training.process.group import Group
from ml_assets.model.training.run import Run, prepare
from ml_assets.model.training.telemetry.event_log import keep_events
from ml_assets_tests.training.small_jobs import small_job
from resources.job.errors import BadConfiguration
from resources.job.events import read_events

UNFIT = "ml_assets_tests.training.untrainable_models"
BOTH, BITWISE, TOLERANCE = ("bitwise", "tolerance"), ("bitwise",), ("tolerance",)
HIDDEN = ("bitwise", "its output")
"""Refused under `tolerance`, too: the exported model would answer otherwise."""


def made(snapshot: Snapshot, folder: Path, group: Group, model: str, determinism: str, **changes: int) -> Run:
    job = small_job(snapshot, f"{UNFIT}.{model}", workers=1, determinism=determinism, **changes)
    return prepare(job, folder, group)


def steps(run: Run, count: int) -> None:
    """Train `count` steps."""
    with Prefetcher(run.order, run.train, 0, 1, 0) as prefetcher:
        gradients = gradients_of(run, prefetcher)
        for step in range(count):
            gradients.backward(step, gradients.fetch(step))
            run.optimizer.step()


@pytest.mark.parametrize(
    ("model", "refused_by", "sentence"),
    [
        ("Double", BITWISE, "first.weight is float64: determinism bitwise adds up gradients of float32"),
        ("Sparse", BOTH, "the gradient of core.table.weight is sparse"),
        ("Unused", TOLERANCE, "the loss does not depend on core.never.weight, core.never.bias"),
        ("ShortBuffer", BOTH, "core.edges is int16, which workers cannot send each other"),
        ("BatchNorm", BITWISE, "changes core.norm.running_mean"),
        ("Spectral", BITWISE, "changes core.first.parametrizations.weight.0._u"),
        ("Codebook", BITWISE, "changes core.mean"),
        ("MaxNorm", BITWISE, "changes core.table.weight"),
        ("Counter", HIDDEN, "changes core.calls"),
        ("HiddenCounter", HIDDEN, "in training changes ml_assets_tests.training.untrainable_models._calls"),
        ("RemembersRows", BITWISE, "gave core.first.weight two gradients"),
        ("FromSystem", BITWISE, "draws last.weight anew whenever it is called"),
        ("Asserts", BOTH, "does not take the columns of the snapshot: seventy-seven columns"),
        ("MissingKey", BOTH, "untrainable_models.MissingKey failed with KeyError: 'wide'"),
        (
            "Lazy",
            BOTH,
            "first.weight of ml_assets_tests.training.untrainable_models.Lazy has no shape before the first pass",
        ),
        (
            "ByRank",
            BITWISE,
            "core.first.weight has different gradients in training if the model cannot read its",
        ),
        ("CountsValidations", HIDDEN, "a forward pass in validation changes core.validations"),
        (
            "CountsSteps",
            BITWISE,
            "core.steps of ml_assets_tests.training.untrainable_models.CountsSteps changed",
        ),
        ("Teacher", HIDDEN, "core.averages of"),
        ("Shrinks", HIDDEN, "core.generator, core.factor of"),
        ("CountsInItsModule", BITWISE, "ml_assets_tests.training.untrainable_models._taken of"),
        ("CountsInItsClass", BITWISE, "untrainable_models.CountsInItsClass.steps of"),
        ("CountsElsewhere", HIDDEN, "gave other numbers after two steps, although the first weights"),
        ("MixesRows", BOTH, "gives a row another output in validation if other rows are beside it"),
        ("AddsUpRows", BOTH, "gives a row another output in validation if other rows are beside it"),
        ("RowsAsSequence", BOTH, "gives a row another output in validation if other rows are beside it"),
        ("AveragedForNow", HIDDEN, "core.average of"),
    ],
)
def test_an_unfit_model_is_refused_before_the_first_step(
    snapshot: Snapshot,
    tmp_path: Path,
    group: Group,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    refused_by: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.setenv("RANK", "0")
    for determinism in BOTH:
        if determinism in refused_by:
            with pytest.raises(BadConfiguration) as refused:
                made(snapshot, tmp_path, group, model, determinism)
            assert sentence in str(refused.value)
        elif refused_by is HIDDEN:
            with pytest.raises(BadConfiguration, match=r"exported model .*validation loss"):
                made(snapshot, tmp_path, group, model, determinism)
        else:
            steps(made(snapshot, tmp_path, group, model, determinism), 3)


@pytest.mark.parametrize(
    ("model", "name"),
    [("CountsSteps", "core.steps"), ("CountsInItsClass", "CountsInItsClass.steps"), ("Numbers", "")],
)
def test_state_that_a_resume_loses_is_a_warning_of_the_run(
    snapshot: Snapshot, tmp_path: Path, group: Group, model: str, name: str
) -> None:
    """The output does not depend on it yet, so `tolerance` only warns."""
    keep_events(tmp_path)
    made(snapshot, tmp_path, group, model, "tolerance")
    warnings = [event.values["message"] for event in read_events(tmp_path) if event.kind == "warning"]
    assert len(warnings) == bool(name)
    assert all(name in warning and "would give other bits" in warning for warning in warnings)


@pytest.mark.parametrize("model", ["Numbers", "FromNumpy", "Cached", "RandomDepth", "Averaged"])
def test_a_fit_model_is_not_refused(snapshot: Snapshot, tmp_path: Path, group: Group, model: str) -> None:
    for determinism in BOTH:
        steps(made(snapshot, tmp_path, group, model, determinism), 3)


def test_a_model_that_changes_itself_later_is_refused_then(
    snapshot: Snapshot, tmp_path: Path, group: Group
) -> None:
    run = made(snapshot, tmp_path, group, "LateState", "bitwise")
    with pytest.raises(BadConfiguration, match=r"changes core\.total"):
        steps(run, 3)


def test_a_pass_of_one_row_with_batch_norm_is_refused_with_the_arithmetic(
    snapshot: Snapshot, tmp_path: Path, group: Group
) -> None:
    with pytest.raises(
        BadConfiguration,
        match=r"single row.*26,.*, gradient_accumulation_steps 13\)",
    ):
        made(snapshot, tmp_path, group, "BatchNorm", "tolerance", gradient_accumulation_steps=13)


def test_a_validation_of_one_row_is_refused_before_the_first_step(
    snapshot: Snapshot, tmp_path: Path, group: Group
) -> None:
    """A lane of 100 validation rows, 11 at once, leaves a single one: each of three attempts failed after an epoch.
    With 13 at once none is alone there, but served rows are."""
    for batch in (22, 26):
        with pytest.raises(BadConfiguration, match=r"in validation \(track_running_stats=False\)"):
            made(snapshot, tmp_path, group, "NormOfPass", "bitwise", global_batch=batch)


def test_the_preflight_leaves_weights_buffers_and_gradients_as_they_were(
    snapshot: Snapshot, tmp_path: Path, group: Group
) -> None:
    run = made(snapshot, tmp_path, group, "BatchNorm", "tolerance")
    norm = run.model.get_submodule("core.norm")
    assert isinstance(norm, torch.nn.BatchNorm1d)
    assert norm.num_batches_tracked == 0
    assert norm.running_mean is not None
    assert not norm.running_mean.any()
    assert all(parameter.grad is None for parameter in run.model.parameters())


def test_a_loss_beyond_float32_gives_a_gradient_that_halts(
    snapshot: Snapshot, tmp_path: Path, group: Group
) -> None:
    job = small_job(snapshot, f"{UNFIT}.Numbers", "regression", workers=1)
    run = prepare(job, tmp_path, group)
    with Prefetcher(run.order, run.train, 0, 1, 0) as prefetcher:
        gradients = gradients_of(run, prefetcher)
        batches = gradients.fetch(0)
        batches[0].label[0] = 2e19  # its square is infinite, its gradient is not
        assert gradients.backward(0, batches) == torch.inf
        assert not torch.isfinite(torch.tensor(run.layout.clip(1.0)))
