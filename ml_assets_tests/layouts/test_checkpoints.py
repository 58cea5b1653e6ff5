"""A checkpoint holds whole values by name: what one layout saved, every other goes on from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from ml_assets.data.snapshots.split_reader import InputSpec
from ml_assets.model.training.checkpoint.checkpoints import Checkpoints
from ml_assets.model.training.checkpoint.parts import Like, State
from ml_assets.model.training.checkpoint.saving import Saver, like_of, restore, state_of
from ml_assets.model.training.data.preprocess import FullModel
from ml_assets.model.training.parallel.layouts import Layout, lay_out
from ml_assets.model.training.process.group import Group
from ml_assets_tests.layouts.residual_models import residual
from ml_assets_tests.training.rank_processes import in_ranks
from resources.job.training_settings import Parallel, TrainingSettings

LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "replicas": {},
        "gradients": {"shard": "gradients"},
        "tensor": {"tensor": 2},
        "pipeline": {"pipeline": 2},
    },
    3: {"three replicas": {}, "optimizer": {"shard": "optimizer"}, "full": {"shard": "full"}},
    4: {
        "full x tensor": {"shard": "full", "tensor": 2},
        "replicas of tensor": {"tensor": 2},
        "replicas of a pipeline": {"pipeline": 2},
        "tensor x pipeline": {"tensor": 2, "pipeline": 2},
    },
}
"""Ranks → what they can do."""
NAMES = [name for layouts in LAYOUTS.values() for name in layouts]
INPUTS = InputSpec(
    numeric=("a", "b"),
    fill=(0.0, 0.0),
    categorical=("c",),
    cardinalities=(5,),
)
STEPS = 3


def every_layout(folder: Path, action: Callable[[Group, Path], None]) -> None:
    """Do `action` with all ranks of every layout, in one start for each number of ranks."""
    for count in LAYOUTS:
        (folder / "store").unlink(missing_ok=True)  # where the ranks of the last start met
        assert in_ranks(count, folder, action) == [None] * count


def laid_out(group: Group, seed: int, **parallel: Any) -> tuple[FullModel, Layout]:
    settings = TrainingSettings(
        workers=group.world_size,
        parallel=Parallel(**parallel),
        global_batch=12,
        lanes=6,
        gradient_accumulation_steps=2,
    )
    torch.manual_seed(seed)
    model = FullModel(INPUTS, residual(INPUTS))
    return model, lay_out(model, model.core, group, settings)


def train_and_save(group: Group, folder: Path) -> None:
    for name, parallel in LAYOUTS[group.world_size].items():
        model, layout = laid_out(group, 1, **parallel)
        spread = layout.spread()
        rows = 6 // layout.data.world_size
        mine = slice(rows * layout.data.rank, rows * (layout.data.rank + 1))
        numeric, category = torch.linspace(-1, 1, 12).reshape(6, 2), torch.arange(6).reshape(6, 1) % 5
        for _ in range(STEPS):
            layout.optimizer.zero_grad()
            if layout.pipe is None:
                (squares(spread.module(numeric[mine], category[mine])) / rows).backward()
            else:
                layout.pipe.backward((numeric[mine], category[mine]), numeric[mine], squares, 1 / rows)
            layout.clip(0.1)
            layout.optimizer.step()
        for place, storage in ((name, "fp32"), (f"{name}, rounded", "bf16")):
            saver = Saver(Checkpoints(folder / place, 2, "f"), group.io_group(), layout.share, storage)
            state = state_of(model, layout.local_optimizer, {"step": STEPS})
            saver.make_memory(lambda state=state: state)
            saver.begin(STEPS, state, 0, lambda _: None, lambda _: None)
            saver.wait()


def squares(output: torch.Tensor, _: torch.Tensor | None = None) -> torch.Tensor:
    return output.square().sum()


def load_all_and_compare(group: Group, folder: Path) -> None:
    for into, parallel in LAYOUTS[group.world_size].items():
        for name in NAMES:
            saved = load(folder, name)
            model, layout = laid_out(group, 2, **parallel)
            mine = load(folder, name, like_of(model, layout.local_optimizer))
            if into in ("full", "pipeline"):  # nobody reads what another needs, besides counts of steps
                assert sum(group.gather(bytes_of(mine))) < 1.05 * bytes_of(saved)
            restore(mine, model, layout.local_optimizer)
            found = state_of(model, layout.local_optimizer, {"step": STEPS})
            for section in ("parameters", "optimizer"):
                for key, value in found[section].items():
                    whole = value.full_tensor() if isinstance(value, DTensor) else value
                    assert torch.equal(whole, saved[section][key]), f"{key} of {name} in {parallel}"
                copies = group.world_size // parallel.get("pipeline", 1)
                if section == "optimizer" and parallel.get("shard") == section:
                    copies = 1
                assert sum(group.gather(len(found[section]))) == copies * len(saved[section]) > 0


def bytes_of(state: State) -> int:
    values = [value for section in ("parameters", "optimizer") for value in state[section].values()]
    return sum((one.to_local() if isinstance(one, DTensor) else one).nbytes for one in values)


def load(folder: Path, name: str, like: Like | None = None) -> State:
    return Checkpoints(folder / name, 2, "f").load(STEPS, like)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of what each layout left after the same steps."""
    folder = tmp_path_factory.mktemp("saved")
    every_layout(folder, train_and_save)
    return folder


def test_layouts_that_learned_from_the_same_rows_save_the_same_state(saved: Path) -> None:
    expected = load(saved, "replicas")
    for name in NAMES[1:]:
        state = load(saved, name)
        assert state.keys() == expected.keys()
        for section in ("parameters", "optimizer", "buffers"):
            torch.testing.assert_close(state[section], expected[section], rtol=1e-3, atol=1e-5)


def test_who_keeps_what_the_optimizer_keeps_changes_no_bit(saved: Path) -> None:
    whole, dealt = load(saved, "three replicas"), load(saved, "optimizer")
    for section in ("parameters", "optimizer"):
        assert all(torch.equal(dealt[section][name], value) for name, value in whole[section].items())


@pytest.mark.nightly
def test_what_any_layout_saved_every_other_goes_on_from(saved: Path) -> None:
    every_layout(saved, load_all_and_compare)


def test_any_layout_rounds_the_same_values(saved: Path) -> None:
    for name in NAMES:
        state, rounded = load(saved, name), load(saved, f"{name}, rounded")
        for section in ("parameters", "optimizer", "buffers"):
            assert rounded[section].keys() == state[section].keys()
            for key, value in state[section].items():
                is_rounded = section != "buffers" and value.dim() > 0
                assert torch.equal(rounded[section][key], value.bfloat16() if is_rounded else value), key


def test_ranks_write_about_as_much_as_each_other(saved: Path) -> None:
    for name in NAMES:
        (checkpoint,) = (saved / name / "checkpoints").glob("step-*")
        sizes = [part.stat().st_size for part in checkpoint.glob("*.distcp")]
        assert len(sizes) == next(count for count, layouts in LAYOUTS.items() if name in layouts)
        assert max(sizes) < 2.5 * min(sizes), f"{name}: {sizes}"
