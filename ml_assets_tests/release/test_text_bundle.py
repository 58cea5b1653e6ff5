"""Bundles of texts: they answer as the torch module does, per text and per token, and know their tokens."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor, nn

from ml_assets.data.features.encoding import fit
from ml_assets.model.release.bundle import TOLERANCE, BundleContents, build_bundle, torch_predictions
from ml_assets.model.release.bundle_store import BlobDecoder, Bundle, BundleStore
from ml_assets.model.release.bundle_store import tokens_of as bundle_tokens_of
from ml_assets.model.release.initial_version import InitialModel, InitialModelRefused
from ml_assets.model.release.runtime import ServingModel
from ml_assets_tests.release.conftest import refuses

DECODE = BlobDecoder(
    column="text",
    function="decode",
    source="import numpy as np\n\ndef decode(content):\n    tokens = np.full(6, -1)\n"
    "    tokens[: len(content)] = np.frombuffer(content, np.uint8) - ord('a')\n    return tokens\n",
    packages=("numpy",),
)
IDS = 5


class Pairs(nn.Module):
    """Scores of the next token by the one before it, and its place."""

    def __init__(self) -> None:
        super().__init__()
        self.after = nn.Embedding(IDS, IDS)
        self.place = nn.Parameter(torch.randn(6, IDS))

    def forward(self, numeric: Tensor, category: Tensor, blob: Tensor) -> Tensor:
        """`[B, 6]` int64 → `[B, 6, 5]`."""
        return self.after(blob.clamp(min=0)) + self.place


def tokens_of(texts: list[bytes]) -> np.ndarray:
    found = np.full((len(texts), 6), -1)
    for row, text in enumerate(texts):
        found[row, : len(text)] = np.frombuffer(text, np.uint8) - ord("a")
    return found


@pytest.fixture(scope="module")
def contents(make_contents: Callable[..., BundleContents], rows: pl.DataFrame) -> BundleContents:
    torch.manual_seed(5)
    draw = np.random.default_rng(2)
    texts = [bytes(draw.integers(97, 97 + IDS, draw.integers(2, 7)).tolist()) for _ in range(rows.height)]
    plain = make_contents(["delay"], [], "next_token")
    texts_of_rows = rows.with_columns(pl.Series("text", texts, dtype=pl.Binary))
    without_columns = fit(rows, (), ())
    changes = {"module": Pairs(), "rows": texts_of_rows, "decode": DECODE, "vocabulary": IDS}
    return BundleContents(**vars(plain) | changes | {"fitted": without_columns})


@pytest.fixture(scope="module")
def bundle(contents: BundleContents, store: BundleStore) -> Bundle:
    return build_bundle(contents, store)


def test_texts_are_answered_as_the_torch_module_does(contents: BundleContents, bundle: Bundle) -> None:
    served, frame = ServingModel.load(bundle.folder), contents.rows.head(40)
    tokens = tokens_of(frame["text"].to_list())
    expected = torch_predictions(contents.module, contents.fitted, "next_token", frame, tokens)  # type: ignore[arg-type]
    assert served.columns == ("nats_per_token", "accuracy")
    found = served.predict(frame)
    np.testing.assert_allclose(found, expected, rtol=0, atol=10 * TOLERANCE)
    assert served.predict_row(frame.row(0, named=True)) == dict(zip(served.columns, found[0], strict=True))
    nats, read = served.predict_tokens(frame)
    np.testing.assert_array_equal(read, tokens)
    counted = tokens[:, 1:] >= 0
    assert (nats[~counted] == 0).all()
    np.testing.assert_allclose(nats.sum(axis=1) / counted.sum(axis=1), found[:, 0], rtol=0, atol=1e-5)


def test_nats_and_accuracy_are_those_of_the_scores(contents: BundleContents, bundle: Bundle) -> None:
    module = contents.module
    assert isinstance(module, Pairs)
    text = b"bad"
    with torch.no_grad():
        scores = module(torch.empty(1, 0), torch.empty(1, 0), torch.from_numpy(tokens_of([text])))[0]
    chances, following = scores.softmax(dim=-1)[:2], [0, 3]  # a after b, d after a
    nats = -np.log([chances[0, 0].item(), chances[1, 3].item()]).mean()
    right = np.mean([chances[i].argmax().item() == token for i, token in enumerate(following)])
    row = {**contents.rows.row(0, named=True), "text": text}
    answer = ServingModel.load(bundle.folder).predict_row(row)
    assert answer == {"nats_per_token": pytest.approx(nats, abs=1e-5), "accuracy": pytest.approx(right)}


def test_a_version_that_reads_other_tokens_is_not_comparable(
    contents: BundleContents, bundle: Bundle, store: BundleStore
) -> None:
    """A loss per token says nothing about a model with larger tokens."""
    other = replace(DECODE, source=DECODE.source.replace("ord('a')", "ord('A') - 32"))
    changed = build_bundle(replace(contents, decode=other), store)
    asked = bundle.facts.question
    assert changed.facts.tokens in changed.facts.question.other_than(asked)
    assert bundle.facts.question.other_than(asked) == ""
    both = (re.escape(tokens) for tokens in (asked.tokens, changed.facts.tokens))
    with refuses(InitialModelRefused, "tokens", "small/1", *both):
        InitialModel("small/1", changed).require_outputs("next_token", asked.tokens)
    InitialModel("small/1", bundle).require_outputs("next_token", asked.tokens)
    assert bundle.facts.schema_digest != changed.facts.schema_digest


def test_an_edited_docstring_of_decode_leaves_tokens_comparable() -> None:
    source = f'"""`decode` of a.b, taken along with the model."""\n{DECODE.source}'
    told = source.replace("a.b", "a.c").replace("(content):", '(content):\n    """Return tokens."""')
    assert bundle_tokens_of("next_token", replace(DECODE, source=source), IDS) == bundle_tokens_of(
        "next_token", replace(DECODE, source=told), IDS
    )
    assert bundle_tokens_of("next_token", DECODE, IDS) != bundle_tokens_of("next_token", DECODE, IDS + 1)
    assert bundle_tokens_of("binary", DECODE, IDS) == ""
