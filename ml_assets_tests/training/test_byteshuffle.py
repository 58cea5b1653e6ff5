"""Compression of checkpoints: every byte comes back, and weights become smaller."""

import io
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.model.training.checkpoint import parts
from ml_assets.model.training.checkpoint.parts import ByteShuffle


def compressed(pieces: Iterable[bytes]) -> bytes:
    stored = io.BytesIO()
    stored.close = lambda: None  # type: ignore[method-assign]
    stream = ByteShuffle().transform_to(stored)
    for piece in pieces:
        stream.write(piece)
    stream.close()
    return stored.getvalue()


@pytest.fixture(scope="module", autouse=True)
def _small_blocks() -> Iterable[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "_CHUNK", 64)
        yield


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_what_was_written_in_any_pieces_is_read(pieces: list[bytes]) -> None:
    stored = compressed(pieces)
    assert ByteShuffle().transform_from(io.BytesIO(stored)).read() == b"".join(pieces)


def test_weights_take_fewer_bytes_than_without_the_shuffle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_CHUNK", 4 << 20)
    weights = np.random.default_rng(1).normal(0, 0.02, 100_000).astype(np.float32).tobytes()
    shuffled = len(compressed([weights]))
    monkeypatch.setattr(parts, "_shuffled", bytes)
    assert shuffled < 0.9 * len(weights)
    assert shuffled < len(compressed([weights]))


def test_a_version_of_the_future_is_refused() -> None:
    with pytest.raises(ValueError, match=r"software cannot read version"):
        ByteShuffle.from_descriptor("2")
