"""Several ranks with each `precision`, with `gradient_accumulation_steps`, `gradient_compression`, `compile` and a full
memory: real ranks, real jobs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ml_assets.data.snapshots.split_reader import Snapshot, open_snapshot
from ml_assets.model.training.data.order import ShardSlice
from ml_assets.model.training.data.prefetcher import Prefetcher
from ml_assets.model.training.data.rowlog import RowLog
from ml_assets.model.training.gradients import gradients_of
from ml_assets.model.training.parallel.reduction import PowerSgd
from ml_assets.model.training.process.group import Group
from ml_assets.model.training.run import Run, prepare
from ml_assets_tests.training.rank_processes import in_ranks, one_rank
from ml_assets_tests.training.single_step import Step, one_step
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from ml_assets_tests.training.text_snapshots import text_snapshot
from ml_assets_tests.training.watcher import Watcher
from resources.job.errors import OutOfMemory
from resources.job.training_settings import Parallel

STEPS, SAVED = 40, 20


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a snapshot, for ranks that get no more than that."""
    small_snapshot(tmp_path / "snapshots")
    return tmp_path


def snapshot_in(place: Path) -> Snapshot:
    """Open the snapshot in this place."""
    [manifest] = place.glob("snapshots/**/snapshot.json")
    return open_snapshot(manifest.parent)


def run_ranks(count: int, place: Path, action: Callable[[Group, Path], None]) -> None:
    """All of them end well."""
    errors = [error for error in in_ranks(count, place, action) if error is not None]
    if errors:
        raise errors[0]


def in_passes(group: Group, place: Path) -> None:
    whole = one_step(snapshot_in(place), place, group, global_batch=48)
    parts = one_step(snapshot_in(place), place, group, global_batch=48, gradient_accumulation_steps=3)
    assert parts.passes == 3
    for name, gradient in whole.gradients.items():
        torch.testing.assert_close(parts.gradients[name], gradient, rtol=1e-4, atol=1e-7)


def test_three_ranks_in_three_passes_have_the_gradient_of_one_pass(place: Path) -> None:
    run_ranks(3, place, in_passes)


def bitwise_bf16(group: Group, place: Path) -> None:
    torch.set_num_threads(1)
    changes: dict[str, Any] = {"determinism": "bitwise", "precision": "bf16", "dropout": 0.2}
    step = one_step(snapshot_in(place), place, group, global_batch=24, **changes)
    if group.is_first:
        torch.save(step.gradients, place / f"{group.world_size}.pt")


def test_bitwise_bf16_has_the_same_bits_for_any_number_of_workers(place: Path) -> None:
    for count in (1, 3):
        run_ranks(count, place, bitwise_bf16)
    alone, three = (torch.load(place / f"{count}.pt") for count in (1, 3))
    assert all(torch.equal(three[name], gradient) for name, gradient in alone.items())


def in_parts(group: Group, place: Path) -> None:
    snapshot, model = snapshot_in(place), "ml_assets_tests.layouts.residual_models.residual"
    plain = flat(one_step(snapshot, place, group, model))
    for parallel in (Parallel(shard="full"), Parallel(tensor=2)):
        for changes, most in (
            ({"gradient_accumulation_steps": 3, "activation_checkpointing": "full"}, 1e-5),
            ({"precision": "bf16"}, 0.02),
        ):
            parts = flat(one_step(snapshot, place, group, model, parallel=parallel, **changes))
            difference = torch.linalg.vector_norm(parts - plain) / torch.linalg.vector_norm(plain)
            assert 0 < difference < most, (parallel, changes)


def validated(group: Group, place: Path, **changes: Any) -> float:
    """The loss of some validation rows before the first step."""
    [manifest] = place.glob("texts/**/snapshot.json")
    torch.manual_seed(1)
    model = "ml_assets_tests.layouts.decoder.decoder"
    job = small_job(
        open_snapshot(manifest.parent),
        model,
        "next_token",
        workers=2,
        gradient_accumulation_steps=2,
        **changes,
    )
    run = prepare(job, place, group)
    run.model.eval()
    with torch.no_grad():
        return run.loss(run.validation.take([ShardSlice(0, np.arange(6))]))


def validate_in_parts(group: Group, place: Path) -> None:
    loss = validated(group, place)
    for parallel in (Parallel(shard="full"), Parallel(shard="full", pipeline=2)):
        in_parts = validated(group, place, precision="bf16", parallel=parallel)
        assert 0 < abs(in_parts - loss) < 0.01 * loss, parallel
        assert in_parts != float(torch.tensor(in_parts).bfloat16()), parallel


def flat(step: Step) -> torch.Tensor:
    return torch.cat([gradient.flatten() for gradient in step.gradients.values()])


def test_sharded_models_recompute_and_use_bf16_as_replicas_do(place: Path) -> None:
    run_ranks(2, place, in_parts)


def test_what_parts_compute_in_bf16_is_validated_in_float32(place: Path) -> None:
    text_snapshot(place / "texts")
    run_ranks(2, place, validate_in_parts)


def compressed(group: Group, place: Path) -> None:
    """Several buckets of gradients, as large models have them; what each way of sending them ended with."""
    torch.set_num_threads(1)
    losses = {way: losses_of(run_of(group, place, way)) for way in ("none", "bf16", "powersgd")}
    last = {way: sum(of_way[-10:]) for way, of_way in losses.items()}
    assert last["bf16"] == pytest.approx(last["none"], rel=0.01)
    assert last["powersgd"] == pytest.approx(last["none"], rel=0.1)
    assert len(set(last.values())) == 3  # each did its own
    resumed = losses_of(run_of(group, place, "powersgd"))
    forgetful = run_of(group, place, "powersgd")
    forgetful.power_sgd = PowerSgd(forgetful.model, forgetful.job.seed, 0)
    found = losses["powersgd"], resumed, losses_of(forgetful)
    if group.is_first:
        torch.save(found, place / "losses.pt")


def run_of(group: Group, place: Path, compression: str) -> Run:
    """A training of three workers, where it stands."""
    torch.manual_seed(1)
    changes: dict[str, Any] = {
        "gradient_compression": compression,
        "learning_rate": 0.001,
        "global_batch": 48,
    }
    job = small_job(snapshot_in(place), "wide", workers=3, **changes)
    (place / compression).mkdir(exist_ok=True)
    run = prepare(job, place / compression, group)
    run.resume()
    return run


def losses_of(run: Run) -> list[float]:
    """Return the losses of the steps that are left of `STEPS`; on the way it is saved, and goes on."""
    group, losses = run.group, list[float]()
    with Prefetcher(run.order, run.train, group.rank, group.world_size, run.progress.step) as prefetcher:
        gradients = gradients_of(run, prefetcher)
        for step in range(run.progress.step, STEPS):
            if step == SAVED and losses:
                run.progress.step = step
                run.save(RowLog(run.folder, 1, group.rank))
            loss = gradients.backward(step, gradients.fetch(step))
            run.optimizer.step()
            losses.append(group.sum([loss])[0] / run.order.batch_units(step))
    run.wait_until_saved()
    weights = [float(one.detach().double().sum()) for one in run.model.parameters()]
    assert len({tuple(of_rank) for of_rank in group.gather_objects(weights)}) == 1
    return losses


def test_compressed_gradients_learn_as_well_and_resume(
    place: Path,
) -> None:
    """The remainder that compression left out is in the checkpoint."""
    run_ranks(3, place, compressed)
    undisturbed, resumed, forgetful = torch.load(place / "losses.pt")
    assert len(resumed) == len(forgetful) == STEPS - SAVED
    with one_rank() as group:  # two workers are lost
        alone = losses_of(run_of(group, place, "powersgd"))
    astray = furthest(forgetful, undisturbed[SAVED:])
    for losses in (resumed, alone):
        assert furthest(losses, undisturbed[SAVED:]) < 1e-3 * astray


def furthest(losses: list[float], others: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(losses, others, strict=True))


def compiled(group: Group, place: Path) -> None:
    step = one_step(snapshot_in(place), place / "job", group, compile=True, count=1)
    torch.save(step.gradients, place / "compiled.pt")


def code_in(place: Path) -> dict[str, int]:
    """Compiled files, and when they were."""
    return {str(path): path.stat().st_mtime_ns for path in (place / "job").rglob("*.so")}


@pytest.mark.nightly
def test_a_compiled_step_has_the_gradient_of_a_plain_one(
    place: Path,
) -> None:
    """The next attempt finds the compiled code in the cache."""
    with one_rank() as group:
        plain = one_step(snapshot_in(place), place, group, count=1)
    run_ranks(1, place, compiled)
    first, code = torch.load(place / "compiled.pt"), code_in(place)
    for name, gradient in plain.gradients.items():
        torch.testing.assert_close(first[name], gradient, rtol=1e-3, atol=1e-6)
    run_ranks(1, place, compiled)
    again = torch.load(place / "compiled.pt")
    assert code == code_in(place) != {}
    assert all(torch.equal(again[name], gradient) for name, gradient in first.items())


def test_a_training_out_of_memory_ends_with_advice(place: Path) -> None:
    """Another attempt would end the same way, so none is made."""
    watcher = Watcher()
    with pytest.raises(OutOfMemory, match=r"memory.*13 rows.*gradient_accumulation_steps 2 \(7"):
        watcher.run(small_job(snapshot_in(place), "hungry"), place / "job")
    assert "started" not in watcher.kinds()  # the pass before the first step finds it
