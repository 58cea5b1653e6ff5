"""Blobs reach the model as the tensor its own function makes of the stored bytes; a text model learns from them."""

import dataclasses
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.data.batches import Batch, Decode, SplitReader, decode_of
from ml_assets.model.training.data.order import RowOrder, ShardSlice
from ml_assets.model.training.data.prefetcher import Prefetcher
from ml_assets.model.training.data.rowlog import RowLog
from ml_assets.model.training.loop import fit
from ml_assets.model.training.process.heartbeat import Heartbeat
from ml_assets.model.training.process.stop import StopRequest
from ml_assets.model.training.run import prepare
from ml_assets.model.training.step.load import build_model, check_output
from ml_assets.model.training.step.objectives import objective_of
from ml_assets_tests.training.rank_processes import one_rank
from ml_assets_tests.training.small_jobs import assert_each_row_once_per_epoch, small_job, small_snapshot
from ml_assets_tests.training.small_models import read_tokens
from ml_assets_tests.training.text_snapshots import TOKENS, text_of, text_snapshot
from resources.job.errors import BadConfiguration

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return text_snapshot(tmp_path_factory.mktemp("snapshots"))


def tokens_of(rows: Sequence[int]) -> list[list[int]]:
    return [list(text_of(row)) for row in rows]


def test_a_batch_holds_the_decoded_blob_of_each_row(snapshot: Snapshot) -> None:
    reader = SplitReader(snapshot, "train", CPU, read_tokens)
    batch = reader.take(
        [ShardSlice(1, np.array([7, 0])), ShardSlice(0, np.array([5])), ShardSlice(2, np.array([3, 3]))]
    )
    assert batch.blob is not None
    assert batch.blob.dtype == torch.int64
    assert batch.blob.tolist() == tokens_of(batch.row.tolist())
    assert [tensor.shape for tensor in batch.inputs] == [(5, 1), (5, 0), (5, TOKENS)]
    parts = batch.split([2, 0, 3])
    assert [part.blob.tolist() for part in parts if part.blob is not None] == [
        tokens_of(part.row.tolist()) for part in parts
    ]
    empty = reader.take([])
    assert empty.blob is not None
    assert empty.blob.shape == (0, TOKENS)


def test_lanes_hand_out_blobs_with_their_rows_from_any_step(snapshot: Snapshot) -> None:
    reader = SplitReader(snapshot, "train", CPU, read_tokens)
    order = RowOrder(shard_units=reader.shard_units, global_batch=24, seed=5, lanes=6)
    for first, world_size in ((0, 2), (3, 3)):
        for rank in range(world_size):
            with Prefetcher(order, reader, rank, world_size, first) as prefetcher:
                for step in range(first, first + 3):
                    for lane, batch in zip(
                        order.lanes_of(rank, world_size), prefetcher.by_lane(step), strict=True
                    ):
                        assert batch.blob is not None
                        assert batch.blob.tolist() == tokens_of(batch.row.tolist())
                        assert batch.row.tolist() == reader.take(order.lane(step, lane)).row.tolist()


def test_few_large_blobs_are_decoded_ahead_of_the_step_that_needs_them(snapshot: Snapshot) -> None:
    decoded = 0

    def decode(content: bytes) -> np.ndarray:
        nonlocal decoded
        decoded += 1
        return np.zeros(2**20, dtype=np.float32)  # 4 MiB

    reader = SplitReader(snapshot, "train", CPU, decode)
    order = RowOrder(shard_units=reader.shard_units, global_batch=24, seed=5, lanes=6)
    with Prefetcher(order, reader, 0, 1, 0) as prefetcher:
        prefetcher.merged(0)
    assert decoded <= 2 * 24  # more than a step ahead would be 96 MiB each


def test_blobs_decoded_in_parallel_stay_in_order(
    snapshot: Snapshot,
) -> None:
    both = threading.Barrier(2)

    def decode(content: bytes) -> np.ndarray:
        both.wait(20)  # for another that is decoding
        return read_tokens(content)

    batch = SplitReader(snapshot, "train", CPU, decode, decode_threads=2).take([ShardSlice(1, np.arange(10))])
    assert batch.blob is not None
    assert batch.blob.tolist() == tokens_of(batch.row.tolist())


def ragged(content: bytes) -> np.ndarray:
    return read_tokens(content)[: 10 + len(content) % 3]


def flipped(content: bytes) -> np.ndarray:
    tokens = read_tokens(content)
    return tokens[::-1].copy() if np.random.random() < 0.5 else tokens


def broken(content: bytes) -> np.ndarray:
    raise OSError("image file is truncated")


def words(content: bytes) -> np.ndarray:
    return np.array(["a word"])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("decode", "complaint"),
    [
        (
            ragged,
            r"was decoded to int64\[1[0-2]\], one before it to int64\[1[0-2]\]: let `decode` crop or pad",
        ),
        (
            broken,
            r"blob of row \d+ \(\d+ bytes, \d{12}\.bin in an archive.*\) with OSError: image file is trunc",
        ),
        (words, r"which no tensor holds: let `decode` return numbers"),
    ],
)
def test_blobs_that_cannot_be_one_tensor_are_refused_by_row(
    snapshot: Snapshot, decode: Decode, complaint: str, threads: int
) -> None:
    reader = SplitReader(snapshot, "train", CPU, decode, decode_threads=threads)
    with pytest.raises(BadConfiguration, match=complaint):
        reader.take([ShardSlice(0, np.arange(20))])


@pytest.mark.parametrize("global_batch", [6, 48])
def test_a_decode_that_draws_random_numbers_is_refused_under_bitwise(
    snapshot: Snapshot, tmp_path: Path, global_batch: int
) -> None:
    """A lane of the small batch has a single row."""
    changes = {"workers": 1, "lanes": 6, "global_batch": global_batch}
    job = small_job(snapshot, "token_pairs", "next_token", determinism="bitwise", **changes)
    random = dataclasses.replace(job, decode=f"{__name__}.flipped")
    freely = dataclasses.replace(random, settings=dataclasses.replace(job.settings, determinism="tolerance"))
    with one_rank() as group:
        for accepted in (job, freely):
            prepare(accepted, tmp_path, group)
        with pytest.raises(BadConfiguration, match=r"test_blobs\.flipped .*two results.*same bytes"):
            prepare(random, tmp_path, group)


def test_a_job_that_does_not_say_how_to_read_blobs_is_refused(snapshot: Snapshot, tmp_path: Path) -> None:
    job = small_job(snapshot, "token_pairs", "next_token")
    assert decode_of(job, snapshot.inputs) is read_tokens
    with pytest.raises(BadConfiguration, match=r"blobs \(text\).*features\.blob\.decode"):
        decode_of(dataclasses.replace(job, decode=""), snapshot.inputs)
    with pytest.raises(BadConfiguration, match=r"decode 'ml_assets_tests\.nothing' .*imported"):
        decode_of(dataclasses.replace(job, decode="ml_assets_tests.nothing"), snapshot.inputs)
    assert decode_of(job, small_snapshot(tmp_path).inputs) is None


def test_the_loss_of_a_row_is_the_mean_over_the_tokens_it_predicts(snapshot: Snapshot) -> None:
    batch = SplitReader(snapshot, "train", CPU, read_tokens).take([ShardSlice(0, np.arange(3))])
    objective = objective_of("next_token")
    output = torch.randn(3, TOKENS, 256, generator=torch.Generator().manual_seed(1))
    chances = output.softmax(dim=-1)
    by_hand = [
        np.mean([-np.log(chances[i, t, token].item()) for t, token in enumerate(tokens[1:])])
        for i, tokens in enumerate(tokens_of(batch.row.tolist()))
    ]
    assert objective.loss(output, batch).item() == pytest.approx(sum(by_hand), rel=1e-5)
    changed = output.clone()
    changed[:, -1] = 9  # predicts what comes after the last token: nobody knows
    assert objective.loss(changed, batch) == objective.loss(output, batch)
    objective.check(output, batch)
    with pytest.raises(ValueError, match=r"\(3, 20\).*token ids"):
        objective.check(output[:, :, 0], batch)


@pytest.mark.parametrize(
    "blob", [None, torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64)], ids=["none", "float", "flat"]
)
def test_a_text_objective_needs_whole_numbers_in_rows(blob: torch.Tensor | None) -> None:
    batch = Batch(
        numeric=torch.zeros(2, 0), category=torch.zeros(2, 0), label=torch.zeros(2), row=np.arange(2),
        blob=blob,
    )  # fmt: skip
    with pytest.raises(BadConfiguration, match=r"blobs of.*\[rows, tokens\].*int64"):
        objective_of("next_token").loss(torch.zeros(2, 5, 3), batch)


@pytest.mark.parametrize("determinism", ["tolerance", "bitwise"])
def test_a_text_model_learns_to_continue(snapshot: Snapshot, tmp_path: Path, determinism: str) -> None:
    job = small_job(
        snapshot,
        "token_pairs",
        "next_token",
        workers=1,
        lanes=2,
        determinism=determinism,
        learning_rate=0.5,
        checkpoint_every_steps=1000,
    )
    with one_rank() as group, Heartbeat(0) as heartbeat:
        run = prepare(job, tmp_path, group)
        run.resume()
        fit(run, RowLog(tmp_path, 1, 0), StopRequest(), heartbeat)
    assert run.progress.best_loss < 1.5  # 4.2 is a guess among the 64 tokens there are
    assert_each_row_once_per_epoch(tmp_path, snapshot, job)


def test_a_model_with_another_output_than_its_objective_reads_is_refused(
    snapshot: Snapshot, tmp_path: Path
) -> None:
    job = small_job(snapshot, "token_pairs", "binary", workers=1)
    with (
        one_rank() as group,
        pytest.raises(BadConfiguration, match=r"token_pairs.*\(2, 20, 256\).*2"),
    ):
        prepare(job, tmp_path, group)
    other = dataclasses.replace(job, model_function=job.model_function.replace("token_pairs", "two_columns"))
    with one_rank() as group, pytest.raises(BadConfiguration, match=r"two_columns .*take the columns"):
        prepare(other, tmp_path, group)


@pytest.mark.parametrize("model", ["sees_all", "sees_all_later", "sees_all_faintly"])
def test_a_text_model_that_looks_ahead_is_refused(snapshot: Snapshot, tmp_path: Path, model: str) -> None:
    """It would reach a perplexity of 1 by copying the token that it should predict."""
    with (
        one_rank() as group,
        pytest.raises(BadConfiguration, match=f"{model} looks ahead: "),
    ):
        prepare(small_job(snapshot, model, "next_token", workers=1), tmp_path, group)


def test_the_look_at_the_first_output_leaves_weights_as_they_were(snapshot: Snapshot) -> None:
    """It fills weights that begin at 0 meanwhile, also if the model is refused."""
    job = small_job(snapshot, "sees_all_later", "next_token", workers=1)
    model = build_model(job, snapshot.inputs)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    two = SplitReader(snapshot, "train", CPU, read_tokens).take([ShardSlice(0, np.array([0, 1]))])
    with pytest.raises(BadConfiguration, match="looks ahead"):
        check_output(job, model, two, snapshot.inputs.outputs)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_padding_of_a_short_text_is_not_learned() -> None:
    """A short row's loss has the same unit as the others': nats of its tokens over the places of a full row."""
    tokens = torch.tensor([[3, 1, 2, 4], [3, 1, -1, -1]])
    output = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
    batch = Batch(
        numeric=torch.zeros(2, 0), category=torch.zeros(2, 0), label=torch.zeros(2), row=np.arange(2),
        blob=tokens,
    )  # fmt: skip
    objective = objective_of("next_token")
    loss = objective.loss(output, batch)
    nats = -output.log_softmax(-1)
    expected = (nats[0, 0, 1] + nats[0, 1, 2] + nats[0, 2, 4] + nats[1, 0, 1]) / 3
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, output)
    assert (gradient[1, 1:] == 0).all()
    figures = objective.predicted(output, tokens)
    assert figures[1].tolist() == pytest.approx([nats[1, 0, 1].item(), float(output[1, 0].argmax() == 1)])
