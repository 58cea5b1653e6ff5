"""`determinism: bitwise` is refused or true for any model that a generator builds, at any world size, through kills.

MODELS=5000 tries as many models (`.ci/nightly`), in shards that fill both cores.
"""

import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.foundation.objective_facts import NAMES, facts_of
from ml_assets_tests.layouts.generated_models import FINE, OF_A_PROCESS, REFUSED
from ml_assets_tests.layouts.rank_pool import MOST, Ranks, ranks
from ml_assets_tests.training.list_snapshots import list_snapshot, sessions
from ml_assets_tests.training.small_jobs import (
    classes_snapshot,
    feature_table,
    small_job,
    small_snapshot,
    with_weights,
)
from resources.job.job import TrainingJob

MODELS = int(os.environ.get("MODELS", "20"))
SHARD = 250
"""Models of one test."""
pytestmark = pytest.mark.timeout(20 * min(MODELS, SHARD) + 120)
SHARDS = pytest.mark.parametrize("first", range(0, MODELS, SHARD))
GLOBAL_BATCH, GLOBAL_BATCH_OF_LISTS, STEPS = 36, 12, 4
"""Rows or lists of a step, and steps of an epoch; the last one has fewer."""
CHECKPOINT_EVERY_STEPS = 3
"""Not a divisor of `STEPS`: checkpoints also lie within an epoch."""

RECURRENT = {"recurrent", "deep"}
"""Parts with recurrent layers."""
PARTS = st.lists(st.sampled_from(sorted(FINE)), min_size=1, max_size=4)
WITH_A_REFUSED_ONE = st.tuples(PARTS, st.sampled_from(sorted(REFUSED))).flatmap(
    lambda both: st.integers(0, len(both[0])).map(lambda at: [*both[0][:at], both[1], *both[0][at:]])
)
WORLDS = st.integers(1, MOST)
CHECKPOINTING = st.sampled_from(["none", "full"])


@pytest.fixture(scope="module")
def pool() -> Iterator[Ranks]:
    with ranks() as pool:
        yield pool


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return small_snapshot(tmp_path_factory.mktemp("snapshots"), feature_table(rows_a_day=13))


@pytest.fixture(scope="module")
def of_classes(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return classes_snapshot(tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def weighted(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Snapshot]:
    """Snapshots with row weights; True: the label is a class."""
    folder = tmp_path_factory.mktemp("weighted")
    return {
        False: small_snapshot(folder, with_weights(feature_table(rows_a_day=13)), weight="weight"),
        True: classes_snapshot(folder, weight="weight"),
    }


@pytest.fixture(scope="module")
def of_lists(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return list_snapshot(tmp_path_factory.mktemp("lists"), sessions(sizes=(3, 1, 5, 2)))


@cache
def has_recurrence_in_bf16() -> bool:
    """True if this processor computes recurrent layers in bf16; on others torch refuses their first pass."""
    with torch.autocast("cpu", torch.bfloat16):
        try:
            torch.nn.LSTM(1, 3, 2, batch_first=True)(torch.ones(2, 4, 1))
            torch.nn.GRU(1, 3, batch_first=True)(torch.ones(2, 4, 1))
        except RuntimeError:
            return False
    return True


def play(law: Callable[[], None], first: int, part: float) -> None:
    """Try the law on its `part` of the shard that begins with model `first`."""
    chosen = settings(
        max_examples=max(round(min(SHARD, MODELS - first) * part), 1),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    # Without a seed of its own each shard of a derandomized profile would try the same models.
    chosen(seed(first)(law) if chosen.derandomize else law)()


def job_of(
    snapshot: Snapshot, parts: list[str], scale: float, objective: str, **settings: str
) -> TrainingJob:
    job = small_job(
        snapshot,
        "ml_assets_tests.layouts.generated_models.generated",
        objective,
        epochs=2,
        global_batch=GLOBAL_BATCH_OF_LISTS if facts_of(objective).has_lists else GLOBAL_BATCH,
        lanes=4,
        workers=MOST,
        checkpoint_every_steps=CHECKPOINT_EVERY_STEPS,
        learning_rate=0.05,
        **{"determinism": "bitwise"} | settings,
    )
    return dataclasses.replace(job, hyperparameters={"parts": parts, "scale": scale})


@SHARDS
def test_any_world_sizes_and_kills_give_the_bits_of_one_rank(
    snapshot: Snapshot,
    of_classes: Snapshot,
    of_lists: Snapshot,
    weighted: dict[bool, Snapshot],
    pool: Ranks,
    first: int,
) -> None:
    @given(
        parts=PARTS,
        scale=st.sampled_from([1e-4, 1.0, 100.0]),
        objective=st.sampled_from([name for name in NAMES if not facts_of(name).has_tokens]),
        has_weights=st.booleans(),
        precision=st.sampled_from(["fp32", "fp32", "fp32", "bf16"]),
        keeping=st.tuples(CHECKPOINTING, CHECKPOINTING, CHECKPOINTING),
        worlds=st.tuples(WORLDS, WORLDS, WORLDS),
        stops=st.tuples(st.integers(1, 2 * STEPS - 1), st.integers(1, STEPS)),
    )
    def law(
        parts: list[str],
        scale: float,
        objective: str,
        has_weights: bool,
        precision: str,
        keeping: tuple[str, str, str],
        worlds: tuple[int, int, int],
        stops: tuple[int, int],
    ) -> None:
        if precision == "bf16" and not RECURRENT.isdisjoint(parts) and not has_recurrence_in_bf16():
            precision = "fp32"
        if "scripted" in parts:  # TorchScript is refused with it
            keeping = "none", "none", "none"

        def job(kept: str = "none") -> TrainingJob:
            facts = facts_of(objective)
            unweighted = of_classes if facts.has_classes else of_lists if facts.has_lists else snapshot
            return job_of(
                weighted[facts.has_classes] if has_weights and facts.takes_weights else unweighted,
                parts,
                scale,
                objective,
                precision=precision,
                activation_checkpointing=kept,
            )

        with tempfile.TemporaryDirectory() as place:
            alone = pool.train(job(), Path(place) / "alone", 1)
            # Counts are e to the power of the output, beyond float32 for large ones.
            # None of these parts has a state.
            assert len(alone) == 64 or (alone == "diverged" and facts_of(objective).link == "exp"), alone
            folder = Path(place) / "disturbed"
            for world, stop, kept in zip(worlds, stops, keeping, strict=False):
                if len(pool.train(job(kept), folder, world, stop)) == 64:
                    break
            assert pool.train(job(keeping[2]), folder, worlds[2]) == alone

    play(law, first, 0.8)


@SHARDS
def test_a_model_that_knows_more_than_its_rows_is_refused_at_the_start(
    snapshot: Snapshot, pool: Ranks, first: int
) -> None:
    """The preflight refuses it before the first step."""

    @given(parts=WITH_A_REFUSED_ONE, world=WORLDS)
    def law(parts: list[str], world: int) -> None:
        with tempfile.TemporaryDirectory() as place:
            job = job_of(snapshot, parts, 1.0, "binary")
            assert pool.train(job, Path(place) / "job", world) == "refused after 0 steps"

    play(law, first, 0.2)


@pytest.mark.parametrize("part", sorted(OF_A_PROCESS))
def test_a_model_that_differs_between_processes_is_refused(
    snapshot: Snapshot, pool: Ranks, part: str
) -> None:
    """Several ranks differ at the start, a single one when it resumes in another process."""
    job = job_of(snapshot, ["linear", part], 1.0, "binary")
    with tempfile.TemporaryDirectory() as place:
        assert pool.train(job, Path(place) / "together", 3) == "refused after 0 steps"
        assert pool.train(job, Path(place) / "alone", 1, CHECKPOINT_EVERY_STEPS + 1) == "stopped"
        with ranks() as others:
            assert others.train(job, Path(place) / "alone", 1) == "refused after 0 steps"


@pytest.mark.parametrize(
    ("world", "settings"),
    [
        (3, {"gradient_accumulation_steps": 2}),
        (4, {"gradient_compression": "bf16"}),
        (3, {"activation_checkpointing": "full"}),
    ],
)
def test_a_resume_under_tolerance_has_the_bits_of_an_unbroken_training(
    snapshot: Snapshot, pool: Ranks, world: int, settings: dict[str, Any]
) -> None:
    """DDP orders its buckets anew after its first pass; from three ranks on another order gives other sums."""
    job = job_of(snapshot, ["wide", "batch norm", "deep"], 1.0, "binary", determinism="tolerance")
    job = dataclasses.replace(job, settings=dataclasses.replace(job.settings, workers=world, **settings))
    with tempfile.TemporaryDirectory() as place:
        unbroken = pool.train(job, Path(place) / "unbroken", world)
        assert len(unbroken) == 64
        assert pool.train(job, Path(place) / "resumed", world, STEPS + 1) == "stopped"
        assert pool.train(job, Path(place) / "resumed", world) == unbroken
