"""Serving: what is refused, at load and at prediction, and that a bundle stands alone."""

import json
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import numpy as np
import onnx
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from safetensors.numpy import load_file, save_file

from ml_assets.model.release.bundle_store import FILES, Bundle, seal
from ml_assets.model.release.runtime import (
    BundleAltered,
    BundleRefused,
    GoldenMismatch,
    InputRefused,
    RowRefused,
    ServingModel,
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_one_altered_bit_in_any_file_is_refused(bundle: Bundle, data: st.DataObject) -> None:
    """Also in a comment, in MLflow's files, and in the listing of the files itself."""
    name = data.draw(st.sampled_from(sorted(FILES)))
    place = data.draw(st.integers(0, 8 * (bundle.folder / name).stat().st_size - 1), label="bit")
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(shutil.copytree(bundle.folder, Path(folder) / "bundle", copy_function=shutil.copyfile))
        content = bytearray((copied / name).read_bytes())
        content[place // 8] ^= 1 << place % 8
        (copied / name).write_bytes(content)
        with pytest.raises(BundleAltered):
            ServingModel.load(copied)


def test_changed_weights_are_refused_at_load(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    save_file(
        {**weights, "net.4.weight": np.zeros_like(weights["net.4.weight"])}, copied / "model.safetensors"
    )
    seal(copied)
    with pytest.raises(GoldenMismatch, match=r"its \d+ golden rows"):
        ServingModel.load(copied)


def test_changed_vocabulary_order_is_refused_at_load(copied: Path) -> None:
    graph = (copied / "model.onnx").read_bytes()
    assert graph.count(b"AA") == 1
    (copied / "model.onnx").write_bytes(graph.replace(b"AA", b"ZZ"))
    seal(copied)
    with pytest.raises(GoldenMismatch):
        ServingModel.load(copied)


def test_changed_golden_answer_is_refused_at_load(copied: Path) -> None:
    path = copied / "golden.parquet"
    golden = pl.read_parquet(path)
    golden.with_columns(pl.col("__prediction__") + 1e-4).write_parquet(path)
    seal(copied)
    with pytest.raises(GoldenMismatch, match=r"largest difference 0\.0001"):
        ServingModel.load(copied)


def test_folder_of_another_kind_is_refused(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleRefused, match="not a bundle"):
        ServingModel.load(tmp_path)
    facts = json.loads((copied / "bundle.json").read_text())
    (copied / "bundle.json").write_text(json.dumps({**facts, "format": 99}))
    seal(copied)
    with pytest.raises(BundleRefused, match="format 99"):
        ServingModel.load(copied)


def test_missing_column_is_named(bundle: Bundle, rows: pl.DataFrame) -> None:
    served = ServingModel.load(bundle.folder)
    with pytest.raises(InputRefused, match=r"columns \['delay'\] are missing"):
        served.predict(rows.drop("delay"))
    with pytest.raises(InputRefused, match="column 'delay' is missing"):
        served.predict_row(rows.drop("delay").row(0, named=True))


def test_text_for_a_number_is_named(bundle: Bundle, rows: pl.DataFrame) -> None:
    served = ServingModel.load(bundle.folder)
    with pytest.raises(InputRefused, match="column 'delay' is String"):
        served.predict(rows.with_columns(pl.lit("12").alias("delay")))
    with pytest.raises(InputRefused, match="column 'delay' holds text"):
        served.predict_row({**rows.row(0, named=True), "delay": "12"})


@pytest.mark.parametrize("far", [float("inf"), -1e300])
def test_a_number_the_model_cannot_read_is_named(bundle: Bundle, rows: pl.DataFrame, far: float) -> None:
    served = ServingModel.load(bundle.folder)
    with pytest.raises(InputRefused, match=r"'delay' .* row 2"):
        served.predict(rows.head(4).with_columns(pl.Series("delay", [0.0, None, far, 1.0])))
    with pytest.raises(InputRefused, match="column 'delay' holds"):
        served.predict_row({**rows.row(0, named=True), "delay": far})


@pytest.mark.parametrize(
    ("value", "kind"), [([1.0], "list"), (date(2013, 1, 1), "date"), (1j, "complex"), ({}, "dict")]
)
def test_a_value_that_is_no_number_is_named(
    bundle: Bundle, rows: pl.DataFrame, value: object, kind: str
) -> None:
    served = ServingModel.load(bundle.folder)
    with pytest.raises(InputRefused, match=f"'delay' holds {kind}"):
        served.predict_row({**rows.row(0, named=True), "delay": value})


def test_an_integer_beyond_float_is_refused(bundle: Bundle, rows: pl.DataFrame) -> None:
    served = ServingModel.load(bundle.folder)
    with pytest.raises(RowRefused, match=r"'hour' .*-inf in row 0"):
        served.predict_row({**rows.row(0, named=True), "hour": -(10**400)})


def test_a_list_is_no_category(bundle: Bundle, rows: pl.DataFrame) -> None:
    served = ServingModel.load(bundle.folder)
    with pytest.raises(InputRefused, match="column 'carrier'"):
        served.predict_row({**rows.row(0, named=True), "carrier": ["AA"]})


@pytest.mark.parametrize("threads", [1, 3])
def test_large_frames_are_cut_without_a_seam(
    bundle: Bundle, rows: pl.DataFrame, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    whole = ServingModel.load(bundle.folder).predict(rows)
    monkeypatch.setattr("ml_assets.model.release.runtime._ROWS_AT_ONCE", 71)
    monkeypatch.setattr("ml_assets.model.release.runtime._ROWS_PER_RUN", 23)
    served = ServingModel.load(bundle.folder, threads=threads)
    np.testing.assert_allclose(served.predict(rows), whole, rtol=0, atol=1e-7)
    far = pl.when(pl.int_range(pl.len()).is_in([100, 500])).then(1e300).otherwise("delay")
    with pytest.raises(RowRefused, match="in row 100, beyond"):
        served.predict(rows.with_columns(far.alias("delay")))


def test_a_graph_that_onnxruntime_cannot_run_is_refused(copied: Path) -> None:
    graph = onnx.load(copied / "model.onnx")
    table = next(one for one in graph.graph.initializer if one.name.endswith("embed.0.weight"))
    table.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(table)[:1], table.name))
    (copied / "model.onnx").write_bytes(graph.SerializeToString())
    seal(copied)
    with pytest.raises(BundleRefused, match=r"golden rows: .*Gather"):
        ServingModel.load(copied)


def test_threads_do_not_share_a_row(bundle: Bundle, rows: pl.DataFrame) -> None:
    served = ServingModel.load(bundle.folder)
    expected = served.predict(rows)
    named = rows.to_dicts()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(served.predict_row, named * 5))
    np.testing.assert_allclose(found, np.tile(expected, 5), rtol=0, atol=1e-7)


def test_a_graph_that_cannot_be_read_is_refused(copied: Path) -> None:
    (copied / "model.onnx").write_bytes(b"\xff" * 100)
    seal(copied)
    with pytest.raises(BundleRefused, match=r"model\.onnx cannot be loaded"):
        ServingModel.load(copied)


def test_each_way_into_the_graph_is_proven_at_load(copied: Path) -> None:
    """The runtime reads vocabulary and scales from `bundle.json`, other programs those in the graph."""
    facts = json.loads((copied / "bundle.json").read_text())
    facts["fitted"]["numeric"][1]["mean"] += 100
    (copied / "bundle.json").write_text(json.dumps(facts))
    seal(copied)
    with pytest.raises(GoldenMismatch):
        ServingModel.load(copied)


def test_bundle_serves_where_the_project_is_not_installed(
    bundle: Bundle, first_answer_elsewhere: Callable[[Bundle], float]
) -> None:
    golden = pl.read_parquet(bundle.folder / "golden.parquet")
    expected = ServingModel.load(bundle.folder).predict(golden)[0]
    assert first_answer_elsewhere(bundle) == pytest.approx(expected, abs=1e-7)
