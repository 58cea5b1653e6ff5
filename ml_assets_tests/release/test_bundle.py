"""Bundles: the graph answers as torch does, from raw columns, and the same weights give the same digest."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from ml_assets.model.release.bundle import (
    MOST_ROWS,
    TOLERANCE,
    BundleContents,
    ParityBroken,
    build_bundle,
    golden_rows,
    torch_predictions,
)
from ml_assets.model.release.bundle_store import (
    FILES,
    Bundle,
    BundleDamaged,
    BundleFacts,
    BundleMissing,
    BundleStore,
    digest_of,
)
from ml_assets.model.release.runtime import BundleRefused, ServingModel
from ml_assets_tests.release.conftest import contents_of
from resources.artifacts import FolderArtifacts

NUMBERS = st.one_of(st.none(), st.floats(-1e4, 1e4, width=32), st.just(float("nan")))
WORDS = st.one_of(
    st.none(), st.sampled_from(["AA", "B6", "Ünited", "", "∅", "nobody", "a\nb", "🛫"]), st.text()
)


@pytest.fixture(scope="module")
def served(bundle: Bundle) -> ServingModel:
    return ServingModel.load(bundle.folder)


@settings(max_examples=60)
@given(
    columns=st.integers(1, 40).flatmap(
        lambda n: st.fixed_dictionaries(
            {
                "hour": st.lists(st.one_of(st.none(), st.integers(-(2**40), 2**40)), min_size=n, max_size=n),
                "distance": st.lists(NUMBERS, min_size=n, max_size=n),
                "is_late": st.lists(st.one_of(st.none(), st.booleans()), min_size=n, max_size=n),
                "delay": st.lists(NUMBERS, min_size=n, max_size=n),
                "carrier": st.lists(WORDS, min_size=n, max_size=n),
                "gate": st.lists(st.one_of(st.none(), st.integers(-3, 60)), min_size=n, max_size=n),
            }
        )
    )
)
def test_graph_answers_as_torch_on_any_raw_rows(
    served: ServingModel, contents: BundleContents, columns: dict[str, list[object]]
) -> None:
    types = {"hour": pl.Int64, "is_late": pl.Boolean, "carrier": pl.String, "gate": pl.Int64}
    frame = pl.DataFrame(columns, schema_overrides={**types, "distance": pl.Float64, "delay": pl.Float64})
    expected = torch_predictions(contents.module, contents.fitted, contents.objective, frame)
    predicted = served.predict(frame)
    assert predicted.shape == (frame.height,)
    assert predicted.dtype == np.float64
    np.testing.assert_allclose(predicted, expected, rtol=0, atol=TOLERANCE)
    alone = [served.predict_row(row) for row in frame.iter_rows(named=True)]
    np.testing.assert_allclose(alone, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("numeric", "category", "objective"),
    [(["hour", "delay"], [], "regression"), ([], ["carrier"], "binary")],
    ids=["numbers only, values", "categories only, probabilities"],
)
def test_models_of_one_kind_of_column(
    make_contents: Callable[..., BundleContents],
    tmp_path: Path,
    rows: pl.DataFrame,
    numeric: list[str],
    category: list[str],
    objective: str,
) -> None:
    contents = make_contents(numeric, category, objective)
    served = ServingModel.load(build_bundle(contents, BundleStore(FolderArtifacts(tmp_path))).folder)
    expected = torch_predictions(contents.module, contents.fitted, objective, rows)
    np.testing.assert_allclose(served.predict(rows), expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(served.predict(rows[3]), expected[3:4], rtol=0, atol=TOLERANCE)
    assert served.predict(rows.clear()).shape == (0,)


def test_a_module_may_take_a_mean(contents: BundleContents, tmp_path: Path, rows: pl.DataFrame) -> None:
    """The exporter calls the result `mean`, and the graph in front of the module has means of its own."""

    class Averaged(torch.nn.Module):
        def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
            return numeric.nan_to_num().mean(dim=1) + category.float().mean(dim=1)

    contents = BundleContents(**{**vars(contents), "module": Averaged()})
    served = ServingModel.load(build_bundle(contents, BundleStore(FolderArtifacts(tmp_path))).folder)
    expected = torch_predictions(contents.module, contents.fitted, contents.objective, rows)
    np.testing.assert_allclose(served.predict(rows), expected, rtol=0, atol=TOLERANCE)


def test_an_empty_text_that_is_a_category_is_not_null(
    make_contents: Callable[..., BundleContents], tmp_path: Path, rows: pl.DataFrame
) -> None:
    words = rows.with_columns(pl.col("carrier").replace("AA", ""))
    contents = make_contents([], ["carrier"], "binary")
    contents = BundleContents(**{**vars(contents), "rows": words})
    vocabulary = ("", "B6", "Ünited", "true")
    state = type(contents.fitted.categorical[0])(name="carrier", vocabulary=vocabulary)
    fitted = type(contents.fitted)(numeric=(), categorical=(state,))
    contents = BundleContents(**{**vars(contents), "fitted": fitted})
    served = ServingModel.load(build_bundle(contents, BundleStore(FolderArtifacts(tmp_path))).folder)
    empty, null = served.predict(pl.DataFrame({"carrier": ["", None]}))
    assert empty != null
    expected = torch_predictions(contents.module, fitted, "binary", words)
    np.testing.assert_allclose(served.predict(words), expected, rtol=0, atol=TOLERANCE)


def test_same_contents_give_the_same_digest_and_are_stored_once(
    bundle: Bundle, contents: BundleContents, store: BundleStore
) -> None:
    stored = sorted(path.name for path in store.root.iterdir())
    again = build_bundle(contents, store)
    assert again.digest == bundle.digest
    assert bundle.digest in stored
    assert sorted(path.name for path in store.root.iterdir()) == stored


def test_other_weights_give_another_digest(contents: BundleContents, tmp_path: Path, bundle: Bundle) -> None:
    torch.manual_seed(12)
    other = type(contents.module)(contents.fitted)
    changed = build_bundle(
        BundleContents(**{**vars(contents), "module": other}), BundleStore(FolderArtifacts(tmp_path))
    )
    assert changed.digest != bundle.digest


def test_bundle_says_nothing_of_the_machine_it_was_made_on(bundle: Bundle) -> None:
    for name in FILES:
        content = (bundle.folder / name).read_bytes()
        assert str(Path.home()).encode() not in content
        assert str(Path(torch.__file__).parent).encode() not in content
    graph = onnx.load(bundle.folder / "model.onnx")
    assert not any(node.metadata_props or node.doc_string for node in graph.graph.node)
    assert [entry.name for entry in graph.graph.input] == [
        "hour", "distance", "is_late", "delay", "carrier", "gate",
    ]  # fmt: skip


def test_another_label_is_another_question(bundle: Bundle, variant: Callable[..., Bundle]) -> None:
    """A version that predicts another column is a major one, and is never compared with the one before."""
    other = variant(label="late_60")
    assert other.facts.schema_digest != bundle.facts.schema_digest
    assert other.facts.recipe_digest == bundle.facts.recipe_digest
    difference = bundle.facts.question.other_than(other.facts.question)
    assert difference == "its label is label, that of this comparison is late_60"
    assert bundle.facts.question.other_than(bundle.facts.question) == ""


def test_facts_of_another_format_are_refused_in_words(copied: Path) -> None:
    facts = json.loads((copied / "bundle.json").read_text())
    (copied / "bundle.json").write_text(json.dumps(facts | {"format": 1}))
    with pytest.raises(BundleRefused, match=r"format 1, .* reads 7:"):
        BundleFacts.read(copied)


def test_facts_survive_the_file(bundle: Bundle, contents: BundleContents) -> None:
    facts = BundleFacts.read(bundle.folder)
    assert facts == bundle.facts
    assert facts.lineage == contents.lineage
    assert facts.fitted.digest == contents.fitted.digest
    assert {column.name: (column.kind, column.dtype) for column in facts.inputs} == {
        "hour": ("numeric", "int64"),
        "distance": ("numeric", "float32"),
        "is_late": ("numeric", "boolean"),
        "delay": ("numeric", "float64"),
        "carrier": ("category", "string"),
        "gate": ("category", "int64"),
    }


def test_weights_file_holds_the_module(bundle: Bundle, contents: BundleContents) -> None:
    stored = load_file(bundle.folder / "model.safetensors")
    state = contents.module.state_dict()
    assert stored.keys() == state.keys()
    assert all(np.array_equal(stored[name], state[name].numpy()) for name in stored)


def test_building_leaves_the_module_in_training_mode(bundle: Bundle, contents: BundleContents) -> None:
    assert contents.module.training


def test_golden_rows_hold_nulls_and_words_nobody_has_seen(
    rows: pl.DataFrame, contents: BundleContents
) -> None:
    golden = golden_rows(rows, contents.fitted)
    assert golden.height <= MOST_ROWS
    assert "label" not in golden.columns
    assert all(golden[name].null_count() for name in golden.columns)
    assert not set(golden["carrier"]) <= {*contents.fitted.categorical[0].vocabulary, None}
    assert golden.equals(golden_rows(rows, contents.fitted))
    with pytest.raises(ValueError, match="pass the holdout"):
        golden_rows(rows.clear(), contents.fitted)


def test_graph_that_differs_from_torch_is_not_stored(
    make_contents: Callable[..., BundleContents], tmp_path: Path
) -> None:
    contents = make_contents(["delay"], [], "regression")

    class Fickle(type(contents.module)):
        """Answers otherwise while it is exported, as an operation with a wrong translation would."""

        def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
            return super().forward(numeric, category) + (0.01 if torch.compiler.is_exporting() else 0.0)

    store = BundleStore(FolderArtifacts(tmp_path / "bundles"))
    with pytest.raises(ParityBroken, match=r"difference 0\.01, allowed 1e-06"):
        build_bundle(BundleContents(**{**vars(contents), "module": Fickle(contents.fitted)}), store)
    assert list(store.root.iterdir()) == []


def test_small_numbers_among_large_ones_may_be_rounded_like_them(
    make_contents: Callable[..., BundleContents], tmp_path: Path
) -> None:
    contents = make_contents(["delay"], [], "regression")

    class Differences(type(contents.module)):
        """Answers with sales of thousands and of a few, each the difference of two large terms in another order."""

        def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
            terms = 3000 * super().forward(numeric, category)
            return (terms + 1777.7) - 1777.7 if torch.compiler.is_exporting() else terms

    module = Differences(contents.fitted)
    module.load_state_dict(contents.module.state_dict())
    store = BundleStore(FolderArtifacts(tmp_path / "bundles"))
    bundle = build_bundle(BundleContents(**{**vars(contents), "module": module}), store)
    assert store.open(bundle.digest).facts == bundle.facts


def test_store_refuses_missing_and_damaged_bundles(bundle: Bundle, copied: Path, tmp_path: Path) -> None:
    store = BundleStore(FolderArtifacts(tmp_path / "store"))
    with pytest.raises(BundleMissing, match="materialize the model again"):
        store.open("0" * 64)
    copied.rename(store.root / bundle.digest)
    assert store.open(bundle.digest).facts == bundle.facts
    facts = store.root / bundle.digest / "bundle.json"
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "metrics": {"auc": 0.99}}))
    with pytest.raises(BundleDamaged, match=r"bundle\.json differs from"):
        store.open(bundle.digest)
    facts.unlink()
    with pytest.raises(BundleDamaged, match=re.escape("lacks bundle.json")):
        digest_of(store.root / bundle.digest)


def test_making_a_bundle_again_mends_a_copy_that_was_cut_off(bundle: Bundle, tmp_path: Path) -> None:
    store = BundleStore(FolderArtifacts(tmp_path))
    for broken in ("model.onnx", "MLmodel"):
        with store.incoming() as folder:
            for name in FILES:
                (folder / name).write_bytes((bundle.folder / name).read_bytes())
            made = store.add(folder)
        assert made.digest == bundle.digest
        (made.folder / broken).unlink()


def test_numbers_of_any_size_are_served_as_they_were_trained(tmp_path: Path, rows: pl.DataFrame) -> None:
    """Epoch seconds, ids and tiny shares: float32 would hold none of them before centring."""
    random = np.random.default_rng(5)
    sizes = rows.with_columns(
        hour=pl.Series(random.integers(1_388_000_000, 1_388_000_999, rows.height)),
        distance=pl.Series(random.normal(1e-7, 5e-8, rows.height)),
        delay=pl.Series(random.normal(1e39, 1e38, rows.height)),
    )
    fitted = contents_of(sizes, ["hour", "distance", "delay"], [], "regression")
    served = ServingModel.load(build_bundle(fitted, BundleStore(FolderArtifacts(tmp_path))).folder)
    predicted = served.predict(sizes)
    expected = torch_predictions(fitted.module, fitted.fitted, "regression", sizes)
    np.testing.assert_allclose(predicted, expected, rtol=0, atol=TOLERANCE)
    assert len(np.unique(sizes["hour"])) < len(np.unique(predicted)) == rows.height
    alone = [served.predict_row(row) for row in sizes.head(50).iter_rows(named=True)]
    np.testing.assert_allclose(alone, expected[:50], rtol=0, atol=TOLERANCE)
