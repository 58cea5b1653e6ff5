"""Every door of a bundle reads a category as training did, whatever type its column has."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.data.features.categories import category_texts
from ml_assets.data.features.encoding import EncodingError, fit
from ml_assets.model.release.bundle import BundleContents, build_bundle, torch_predictions
from ml_assets.model.release.bundle_store import Bundle, BundleStore, seal
from ml_assets.model.release.runtime import (
    GOLDEN,
    GOLDEN_OUTPUT,
    GoldenMismatch,
    InputRefused,
    NumberForText,
    PredictionNotFinite,
    RowRefused,
    ServingModel,
)
from ml_assets.model.steps.blobs import predicted
from ml_assets.use.serving.raw_rows import predict_many
from ml_assets_tests.release.conftest import contents_of
from resources.artifacts import FolderArtifacts

START = datetime(2024, 1, 7, 23, 59, 59, 250_000, UTC)
EARLY = datetime(1960, 1, 1, tzinfo=UTC)
KINDS: dict[str, tuple[pl.DataType, list[Any]]] = {
    "text": (pl.String(), ["", "5", "true", "2024-01-07", "Ünited"]),
    "enum": (pl.Enum(["low", "high"]), ["low", "high"]),
    "flag": (pl.Boolean(), [True, False]),
    "small": (pl.Int8(), [-3, 0, 5]),
    "large": (pl.UInt64(), [0, 5, 2**53 + 1, 2**64 - 1]),
    "single": (pl.Float32(), [0.1, 1 / 3, 5.0, -0.0, 1e20, math.nan]),
    "double": (pl.Float64(), [0.1, 1 / 3, 5.0, 0.0, -2.5e-7, math.nan]),
    "day": (pl.Date(), [date(2024, 1, 7), date(1969, 12, 31)]),
    "moment": (pl.Datetime("us", "UTC"), [START, datetime(2024, 1, 7, tzinfo=UTC)]),
    "local": (pl.Datetime("us", "America/New_York"), [START, START + timedelta(days=200)]),
    "naive": (pl.Datetime("ms"), [START.replace(tzinfo=None), EARLY.replace(tzinfo=None)]),
}
"""Column → its type in the feature table, and values it holds."""
SCHEMA = {name: dtype for name, (dtype, _) in KINDS.items()}
ROWS = st.lists(
    st.fixed_dictionaries({name: st.sampled_from([None, *values]) for name, (_, values) in KINDS.items()}),
    min_size=1,
    max_size=8,
)


@pytest.fixture(scope="module")
def contents() -> BundleContents:
    random = np.random.default_rng(3)
    table = pl.DataFrame(
        {
            name: pl.Series([values[i] for i in random.integers(0, len(values), 400)], dtype=dtype)
            for name, (dtype, values) in KINDS.items()
        }
    )
    return contents_of(table, [], list(KINDS), "regression")


@pytest.fixture(scope="module")
def bundle(contents: BundleContents, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return build_bundle(contents, BundleStore(FolderArtifacts(tmp_path_factory.mktemp("doors"))))


@pytest.fixture(scope="module")
def served(bundle: Bundle) -> ServingModel:
    return ServingModel.load(bundle.folder)


@pytest.fixture(scope="module")
def through_mlflow(bundle: Bundle) -> Any:
    return mlflow.pyfunc.load_model(str(bundle.folder))


@settings(max_examples=60)
@given(ROWS)
def test_every_door_gives_the_answer_of_training(
    contents: BundleContents, served: ServingModel, through_mlflow: Any, rows: list[dict[str, Any]]
) -> None:
    frame = pl.DataFrame(rows, schema=SCHEMA)
    trained = torch_predictions(contents.module, contents.fitted, "regression", frame)
    asked = _with_large_numbers_as_text(rows)
    objects = pd.DataFrame(asked, columns=list(KINDS), dtype=object)
    # From the frame where its type can hold a null: pandas makes floats of integers otherwise.
    typed = pd.DataFrame(
        {name: objects[name] if frame[name].null_count() else frame[name].to_numpy() for name in KINDS}
    )
    answers = {
        "a frame": served.predict(frame),
        "one row": [served.predict_row(row) for row in frame.iter_rows(named=True)],
        "one row, as the source gave it": [served.predict_row(row) for row in rows],
        "pandas' objects": through_mlflow.predict(objects),
        "pandas' own types": through_mlflow.predict(typed),
        "JSON": through_mlflow.predict(
            pd.DataFrame(json.loads(json.dumps(asked, default=_iso)), dtype=object)
        ),
    }
    for door, answered in answers.items():
        np.testing.assert_allclose(answered, trained, rtol=0, atol=1e-6, err_msg=door)


def _with_large_numbers_as_text(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows as docs/concepts/inputs.md asks for them. MLflow makes floats of whole numbers where a value is
    missing, so a column with values beyond 2**53 goes as text."""
    values = [row["large"] for row in rows]
    if None not in values or all(value is None or value <= 2**53 for value in values):
        return rows
    return [row | {"large": None if row["large"] is None else str(row["large"])} for row in rows]


def _iso(value: date) -> str:
    return value.isoformat()


@pytest.mark.parametrize(
    ("column", "value", "same_as"),
    [
        ("small", 5.0, 5),
        ("small", "5", 5),
        ("small", 5.5, None),
        ("small", 400, None),
        ("flag", "True", True),
        ("flag", 1, True),
        ("flag", 2, None),
        ("single", 0.1, float(np.float32(0.1))),
        ("text", 5, "5"),
        ("text", 5.0, "5"),
        ("text", np.float32(5), "5"),
        ("text", 5.5, None),
        ("text", float("nan"), None),
        ("text", True, "true"),
        ("day", datetime(2024, 1, 7, tzinfo=UTC), date(2024, 1, 7)),
        ("day", "2024-01-07", date(2024, 1, 7)),
        ("day", "2024-01-07T12:00:00Z", None),
        ("day", "soon", None),
        ("moment", "2024-01-07", datetime(2024, 1, 7, tzinfo=UTC)),
        (
            "moment",
            datetime(2024, 1, 7, 2, tzinfo=timezone(timedelta(hours=2))),
            datetime(2024, 1, 7, tzinfo=UTC),
        ),
        ("large", np.uint64(2**53 + 1), 2**53 + 1),
    ],
)
def test_a_value_of_another_type_is_read_as_the_tables(
    served: ServingModel, column: str, value: object, same_as: object
) -> None:
    rest = dict.fromkeys(KINDS)
    asked, expected = (served.predict_row({**rest, column: one}) for one in (value, same_as))
    assert asked == expected
    if same_as is not None:
        assert asked != served.predict_row(rest)


def test_numbers_in_a_column_of_texts_are_read_alike_and_warned_of(bundle: Bundle) -> None:
    """pandas makes 5.0 of 5 where another row has none. Through MLflow that was an unknown category, without a word."""
    rest: dict[str, Any] = dict.fromkeys(KINDS)
    rows = [{**rest, "text": value} for value in (5, None)]
    expected = [ServingModel.load(bundle.folder).predict_row({**rest, "text": text}) for text in ("5", None)]
    assert expected[0] != expected[1]

    def through_mlflow(asked: list[dict[str, Any]]) -> Any:
        numbers = pd.DataFrame(asked).astype({"text": float})
        assert numbers["text"].tolist()[0] == 5.0
        return mlflow.pyfunc.load_model(str(bundle.folder)).predict(numbers)

    def http(asked: list[dict[str, Any]]) -> list[Any]:
        return list(predict_many(ServingModel.load(bundle.folder), [{**one} for one in asked]))

    def by_row(asked: list[dict[str, Any]]) -> list[Any]:
        served = ServingModel.load(bundle.folder)
        return [served.predict_row(one) for one in asked]

    doors: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
        "pyfunc": through_mlflow,
        "HTTP": http,
        "a row": by_row,
        "batch": lambda asked: ServingModel.load(bundle.folder).predict(
            pl.DataFrame(asked, schema={**SCHEMA, "text": pl.Float64()})
        ),
    }
    for name, door in doors.items():
        with pytest.warns(UserWarning, match="'text' .* holds numbers") as told:
            np.testing.assert_allclose(door(rows), expected, rtol=0, atol=1e-6, err_msg=name)
        assert sum(type(one.message).__name__ == NumberForText.__name__ for one in told) == 1, (
            "once for each column"
        )


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("text", [1, "a"]),
        ("small", [1, "a"]),
        ("text", [["a"], "b"]),
        ("day", [1, date(2024, 1, 1)]),
        ("double", [1j, 2]),
    ],
)
def test_mlflow_refuses_a_mixed_column_by_name(through_mlflow: Any, column: str, values: list[Any]) -> None:
    """Polars' own errors came through, without the column."""
    frame = pd.DataFrame({**dict.fromkeys(KINDS, [None] * len(values)), column: values}, dtype=object)
    with pytest.raises(Exception, match=f"column '{column}'") as refused:
        through_mlflow.predict(frame)
    assert type(refused.value).__name__ == InputRefused.__name__


@pytest.mark.parametrize(
    ("column", "value"), [("text", ["a"]), ("text", b"a"), ("day", 7), ("small", date(2024, 1, 7))]
)
def test_what_cannot_be_the_category_is_refused_by_name(
    served: ServingModel, column: str, value: object
) -> None:
    row = {**dict.fromkeys(KINDS), column: value}
    with pytest.raises(InputRefused, match=column):
        served.predict_row(row)
    with pytest.raises(InputRefused, match=column):
        served.predict(pl.DataFrame([row]))


def test_a_text_that_is_not_valid_unicode_is_refused_by_name(served: ServingModel) -> None:
    for value in ("\ud800", "a long text with half of a pair \udfff"):
        for column in ("text", "double", "day"):
            with pytest.raises(InputRefused, match=f"'{column}': .* not valid Unicode"):
                served.predict_row({**dict.fromkeys(KINDS), column: value})


@pytest.mark.parametrize("column", ["single", "double"])
def test_minus_zero_is_the_category_zero(bundle: Bundle, column: str) -> None:
    """For each door, whichever of the two it reads first."""
    dtype, answers = SCHEMA[column], set[float]()
    for values in ([0.0, -0.0], [-0.0, 0.0]):
        assert category_texts(pl.Series(values, dtype=dtype), dtype).to_list() == ["0.0", "0.0"]
        rows = [{**dict.fromkeys(KINDS), column: value} for value in values]
        served = ServingModel.load(bundle.folder)
        answers |= set(served.predict(pl.DataFrame(rows, schema=SCHEMA)).tolist())
        answers |= {served.predict_row(row) for row in rows}
    assert len({round(one, 6) for one in answers}) == 1
    assert round(served.predict_row(dict.fromkeys(KINDS)), 6) not in {round(one, 6) for one in answers}


def test_a_column_without_a_text_is_no_category() -> None:
    with pytest.raises(EncodingError, match=r"'tags': List\(String\)"):
        fit(pl.DataFrame({"tags": [["a"], ["b"]]}), [], ["tags"])


@pytest.mark.parametrize("door", ["one row", "pandas"])
def test_golden_rows_go_through_every_door(bundle: Bundle, tmp_path: Path, door: str) -> None:
    """A bundle whose frames answer right and whose rows do not is refused as well."""
    copied = Path(shutil.copytree(bundle.folder, tmp_path / "copy", copy_function=shutil.copyfile))
    if door == "one row":
        program = copied / "categories.py"
        broken = program.read_text().replace("category_texts(pl.Series([value]), dtype)[0]", "str(value)")
    else:
        program = copied / "pyfunc.py"
        broken = program.read_text().replace(
            "return pl.Series(column.name, present, ", "return pl.Series(column.name, present[::-1], "
        )
    assert broken != program.read_text()
    program.write_text(broken)
    seal(copied)
    with pytest.raises(Exception, match="predict different values") as refused:
        mlflow.pyfunc.load_model(str(copied))
    assert type(refused.value).__name__ == GoldenMismatch.__name__


class Loglinear(torch.nn.Module):
    """Answers about e⁸, near which float32 has steps of a millionth."""

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return 8 + 0.3 * numeric.nan_to_num().sum(dim=1) + 0.01 * category.sum(dim=1)


def test_a_count_is_served_and_one_beyond_all_numbers_is_refused_by_row(tmp_path: Path) -> None:
    """e to the power of a wild value is infinite: no door answers that."""
    random = np.random.default_rng(4)
    table = pl.DataFrame({"x": random.normal(size=200), "colour": random.choice(["red", "blue"], 200)})
    contents = replace(contents_of(table, ["x"], ["colour"], "count"), module=Loglinear())
    bundle = build_bundle(contents, BundleStore(FolderArtifacts(tmp_path)))
    trained = torch_predictions(contents.module, contents.fitted, "count", table)
    assert 1000 < trained.min() < trained.max() < 10_000
    served, through_mlflow = ServingModel.load(bundle.folder), mlflow.pyfunc.load_model(str(bundle.folder))
    np.testing.assert_allclose(served.predict(table), trained, rtol=1e-5)
    np.testing.assert_allclose(through_mlflow.predict(table.to_pandas()), trained, rtol=1e-5)
    assert served.predict_row(table.row(5, named=True)) == pytest.approx(trained[5], rel=1e-5)
    wild = table.with_columns(pl.when(pl.int_range(pl.len()) == 7).then(1e6).otherwise("x").alias("x"))
    with pytest.raises(PredictionNotFinite, match="inf for row 7,"):
        served.predict(wild)
    with pytest.raises(PredictionNotFinite, match="inf for row 0"):
        served.predict_row(wild.row(7, named=True))
    keyed = wild.with_columns(shop=pl.lit("north"), day=pl.int_range(pl.len()))
    with pytest.raises(PredictionNotFinite, match="inf for row shop=north, day=7,"):
        predicted(served, keyed, keyed.lazy(), ("shop", "day"))
    beyond = keyed.with_columns(x=pl.col("x") * pl.when(pl.col("day") == 7).then(1e294).otherwise(1.0))
    with pytest.raises(RowRefused, match=r"'x' .*1e\+300 in row shop=north, day=7,"):
        predicted(served, beyond, beyond.lazy(), ("shop", "day"))


def test_every_door_names_the_classes_and_gives_the_same_probabilities(tmp_path: Path) -> None:
    """Golden rows, frames, single rows, MLflow, and MLflow's signature."""
    random = np.random.default_rng(4)
    table = pl.DataFrame({"x": random.normal(size=200), "colour": random.choice(["red", "blue"], 200)})
    contents = contents_of(table, ["x"], ["colour"], "multiclass", classes=("no", "so so", "yes"))
    bundle = build_bundle(contents, BundleStore(FolderArtifacts(tmp_path)))
    trained = torch_predictions(contents.module, contents.fitted, "multiclass", table)
    assert trained.shape == (200, 3)
    assert trained.sum(axis=1) == pytest.approx(np.ones(200))
    served = ServingModel.load(bundle.folder)
    assert served.classes == bundle.facts.fitted.classes == ("no", "so so", "yes")
    np.testing.assert_allclose(served.predict(table), trained, rtol=0, atol=1e-6)
    assert served.predict_row(table.row(0, named=True)) == pytest.approx(
        dict(zip(served.classes, trained[0], strict=True)), abs=1e-6
    )
    through_mlflow = mlflow.pyfunc.load_model(str(bundle.folder))
    answer = through_mlflow.predict(pd.DataFrame(table.to_dict(as_series=False), index=range(7, 207)))
    assert (
        list(answer.columns)
        == list(served.classes)
        == through_mlflow.metadata.signature.outputs.input_names()
    )
    assert answer.index[0] == 7
    np.testing.assert_allclose(answer.to_numpy(), trained, rtol=0, atol=1e-6)
    golden = pl.read_parquet(bundle.folder / GOLDEN)
    np.testing.assert_allclose(golden[GOLDEN_OUTPUT].to_numpy()[:1], trained[:1], rtol=0, atol=1e-6)
