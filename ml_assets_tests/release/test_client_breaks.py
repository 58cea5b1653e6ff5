"""Serving signature: which version may answer the clients of another one."""

import itertools
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.model.release.bundle import build_bundle
from ml_assets.model.release.bundle_store import Bundle, BundleFacts, BundleStore, client_breaks
from ml_assets.model.release.onnx_graph import MatrixGraph
from ml_assets.model.release.promotion import promote as promote_version
from ml_assets.model.release.promotion import register as register_version
from ml_assets.model.release.releases import NotPromotable, Releases
from ml_assets.model.release.rules import Rules
from ml_assets.model.release.runtime import ServingModel
from ml_assets.use.serving.raw_rows import RequestRefused, predict_one
from ml_assets_tests.release.conftest import Evaluate, contents_of, refuses
from ml_assets_tests.release.test_matrix import weighted_sum
from resources.ledger import Person

COMPATIBLE = Rules.model_validate({"signature": "compatible"})
CLASSES = ("late", "on time", "early")
MODELS: dict[str, tuple[list[str], list[str], str, tuple[str, ...]]] = {
    "base": (["hour", "distance"], ["carrier"], "binary", ()),
    "fewer": (["hour"], ["carrier"], "binary", ()),
    "more": (["hour", "distance", "delay"], ["carrier"], "binary", ()),
    "another kind": (["distance"], ["carrier", "hour"], "binary", ()),
    "a number": (["hour", "distance"], ["carrier"], "regression", ()),
    "classes": (["hour", "distance"], ["carrier"], "multiclass", CLASSES),
    "two classes": (["hour", "distance"], ["carrier"], "multiclass", CLASSES[:2]),
}


@pytest.fixture(scope="module")
def bundles(rows: pl.DataFrame, store: BundleStore) -> dict[str, Bundle]:
    """Bundles over graphs that need no export from torch, which takes seconds."""

    def built(numeric: list[str], category: list[str], objective: str, classes: tuple[str, ...]) -> Bundle:
        graph = weighted_sum(len(numeric) + len(category), out=len(classes) or 1)
        contents = contents_of(rows, numeric, category, objective, classes)
        return build_bundle(replace(contents, module=MatrixGraph(graph.SerializeToString())), store)

    return {name: built(*columns) for name, columns in MODELS.items()}


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ("base", None),
        ("fewer", None),
        ("more", "it needs the column 'delay' (numeric, float64), which clients do not send"),
        ("another kind", "it reads the column 'hour' as category (int64), and clients send numeric (int64)"),
        ("a number", "its objective is 'regression', and clients expect 'binary'"),
        ("classes", "its answer has late, on time, early, and clients expect one number"),
    ],
)
def test_a_version_breaks_clients_by_columns_and_answers(
    bundles: dict[str, Bundle], after: str, said: str | None
) -> None:
    found = list(client_breaks(bundles["base"].facts, bundles[after].facts))
    assert (said in found) if said else not found


def test_a_lost_class_breaks_clients(bundles: dict[str, Bundle]) -> None:
    (found,) = client_breaks(bundles["classes"].facts, bundles["two classes"].facts)
    assert found == "its answer has late, on time, and clients expect late, on time, early"


def answer(model: ServingModel, row: dict[str, Any]) -> set[str] | None:
    """Return the names of the numbers in an answer; None if the row is refused."""
    try:
        said = predict_one(model, row)
    except RequestRefused:
        return None
    return set(said) if isinstance(said, dict) else set()


@given(data=st.data())
def test_what_is_compatible_answers_each_row_of_the_clients(
    bundles: dict[str, Bundle], data: st.DataObject
) -> None:
    """Also values of other types, values that training never saw, and columns that nobody reads."""
    value = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**31), 2**31),
        st.floats(allow_nan=False, width=32),
        st.text(max_size=4),
    )
    names = ["hour", "distance", "carrier", "delay", "unread"]
    row = data.draw(st.dictionaries(st.sampled_from(names), value), label="row")
    pairs = list(itertools.permutations(bundles, 2))
    before, after = data.draw(st.sampled_from(pairs), label="versions")
    facts: dict[str, BundleFacts] = {name: bundle.facts for name, bundle in bundles.items()}
    known = answer(ServingModel.load(bundles[before].folder), row)
    if known is not None and not list(client_breaks(facts[before], facts[after])):
        assert answer(ServingModel.load(bundles[after].folder), row) == known


def test_promote_refuses_what_would_break_clients(
    releases: Releases, evaluate: Evaluate, run_id: str, bundles: dict[str, Bundle]
) -> None:
    def register(name: str) -> None:
        evaluate(bundles[name])
        register_version(releases, bundles[name], run_id=run_id, links={})

    def promote(number: int, rules: Rules = COMPATIBLE) -> str:
        return promote_version(
            releases, "small", number, by=Person.unchecked("bob"), reason="better", rules=rules
        ).version

    register("base")
    assert promote(1) == "1"  # it has no clients yet
    register("more")
    with refuses(NotPromotable, "signature", "it needs the column"):
        promote(2)
    register("fewer")
    assert promote(3) == "3"
    assert promote(1) == "1"  # it was in production before
