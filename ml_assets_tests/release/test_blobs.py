"""Bundles of models that read blobs: they take along how one is read, and answer rows with bytes, by themselves."""

import importlib.util
import py_compile
import shutil
from collections.abc import Callable
from pathlib import Path

import mlflow.pyfunc
import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor, nn

from ml_assets.model.evaluation.comparison.explanations import explain
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets.model.release.bundle import TOLERANCE, BundleContents, build_bundle, torch_predictions
from ml_assets.model.release.bundle_store import (
    BlobDecoder,
    Bundle,
    BundleDamaged,
    BundleFacts,
    BundleStore,
    seal,
)
from ml_assets.model.release.runtime import BlobReader, BundleRefused, InputRefused, ServingModel
from ml_assets.model.steps.blobs import predicted
from ml_assets.model.steps.bundling import serving_cost_of
from resources.artifacts import FolderArtifacts

DECODE = BlobDecoder(
    column="picture",
    function="decode",
    source="import numpy as np\nSIDE = 4\n\ndef decode(content):\n"
    "    return np.frombuffer(content, np.uint8).reshape(SIDE, SIDE)\n",
    packages=("numpy", "yaml", "of_nobody"),
)


class Looking(nn.Module):
    """Reads a number and a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Linear(16, 1)

    def forward(self, numeric: Tensor, category: Tensor, blob: Tensor) -> Tensor:
        """`[B, F]`, nothing, `[B, 4, 4]` uint8 → `[B]`."""
        return self.seen(blob.flatten(1).float() / 255).squeeze(1) + torch.nan_to_num(numeric).sum(dim=1)


def with_pictures(rows: pl.DataFrame) -> pl.DataFrame:
    drawn = np.random.default_rng(3).integers(0, 256, (rows.height, 16), dtype=np.uint8)
    return rows.with_columns(pl.Series("picture", [one.tobytes() for one in drawn], dtype=pl.Binary))


@pytest.fixture(scope="module")
def contents(make_contents: Callable[..., BundleContents], rows: pl.DataFrame) -> BundleContents:
    """One number of 10, and pictures."""
    torch.manual_seed(5)
    plain = make_contents(["delay"], [], "regression")
    changes = {"module": Looking(), "rows": with_pictures(rows), "decode": DECODE}
    return BundleContents(**vars(plain) | changes)


@pytest.fixture(scope="module")
def seeing(contents: BundleContents, store: BundleStore) -> Bundle:
    return build_bundle(contents, store)


@pytest.fixture(scope="module")
def served(seeing: Bundle) -> ServingModel:
    return ServingModel.load(seeing.folder)


def test_rows_with_blobs_are_answered_as_the_torch_module_does(
    served: ServingModel, contents: BundleContents, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = contents.rows.head(50)
    blobs = np.stack([np.frombuffer(one, np.uint8).reshape(4, 4) for one in frame["picture"]])
    expected = torch_predictions(contents.module, contents.fitted, "regression", frame, blobs)  # type: ignore[arg-type]
    np.testing.assert_allclose(served.predict(frame), expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(
        [served.predict_row(row) for row in frame.head(3).iter_rows(named=True)],
        expected[:3],
        rtol=0,
        atol=TOLERANCE,
    )
    monkeypatch.setattr(served, "_rows_per_run", 7)
    np.testing.assert_allclose(served.predict(frame), expected, rtol=0, atol=TOLERANCE)
    assert served.predict(frame.clear()).shape == (0,)


def test_blobs_that_became_texts_are_refused_by_the_model(
    served: ServingModel, contents: BundleContents
) -> None:
    """A champion that cannot score is an outcome; an error of polars would end the evaluation."""
    rows = contents.rows.head(5).with_columns(picture=pl.lit("s3://pictures/1"))
    with pytest.raises(InputRefused, match=r"column 'picture' is String, the model reads bytes"):
        predicted(served, rows, rows.lazy(), ["delay"])


def test_what_a_bundle_says_of_blobs_survives_the_file(seeing: Bundle) -> None:
    facts = BundleFacts.read(seeing.folder)
    assert facts == seeing.facts
    assert facts.blob is not None
    assert (facts.blob.dtype, facts.blob.shape, facts.blob.bytes) == ("uint8", (4, 4), 16)
    assert [(column.name, column.kind, column.dtype) for column in facts.inputs] == [
        ("delay", "numeric", "float64"),
        ("picture", "blob", "binary"),
    ]
    needs = (seeing.folder / "requirements.txt").read_text().splitlines()
    assert [line.partition("==")[0].lower() for line in needs] == [
        "pyyaml",
        "mlflow",
        "numpy",
        "onnx",
        "onnxruntime",
        "pandas",
        "polars",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "row 3 has no 'picture', the blob the model reads: leave such rows out"),
        (
            b"short",
            r"'picture' of row 3 \(5 bytes\) cannot be read, `decode` failed with ValueError: cannot resh",
        ),
    ],
)
def test_a_row_whose_blob_cannot_be_read_is_named(
    served: ServingModel, contents: BundleContents, content: bytes | None, said: str
) -> None:
    frame = contents.rows.head(6)
    spoiled = (
        pl.when(pl.int_range(pl.len()) == 3).then(pl.lit(content, pl.Binary)).otherwise(pl.col("picture"))
    )
    with pytest.raises(InputRefused, match=said):
        served.predict(frame.with_columns(spoiled.alias("picture")))


def test_a_column_that_is_not_bytes_or_not_there_is_named(
    served: ServingModel, contents: BundleContents
) -> None:
    frame = contents.rows.head(2)
    with pytest.raises(InputRefused, match="'picture' is String"):
        served.predict(frame.with_columns(pl.lit("text").alias("picture")))
    with pytest.raises(InputRefused, match=r"columns \['picture'\] are missing"):
        served.predict(frame.drop("picture"))
    with pytest.raises(InputRefused, match="'picture' of the row"):
        served.predict_row({"delay": 1.0, "picture": "text"})


def test_blobs_of_several_shapes_or_without_numbers_are_refused() -> None:
    def by_length(content: bytes) -> np.ndarray:
        return np.zeros(len(content)) if content else np.array(["a word"])

    read = BlobReader("picture", by_length).read
    with pytest.raises(InputRefused, match=r"of b .* float64\[3\], .* float64\[2\]"):
        read([b"..", b"..."], ["a", "b"])
    with pytest.raises(InputRefused, match=r"of a .* <U6: let `decode`"):
        read([b""], ["a"])


def test_a_bundle_with_blobs_serves_where_the_project_is_not_installed(
    seeing: Bundle, served: ServingModel, first_answer_elsewhere: Callable[[Bundle], float]
) -> None:
    expected = served.predict(pl.read_parquet(seeing.folder / "golden.parquet"))[0]
    assert first_answer_elsewhere(seeing) == pytest.approx(expected, abs=1e-6)


def test_a_changed_decode_is_damage_and_one_that_does_not_load_is_refused(
    seeing: Bundle, store: BundleStore, tmp_path: Path
) -> None:
    files = {"copy_function": shutil.copyfile, "ignore": shutil.ignore_patterns("__pycache__")}
    copy = Path(shutil.copytree(seeing.folder, tmp_path / "bundle", **files))
    (copy / "decode.py").write_text("import of_nobody\n")
    unsealed = (copy / "files.sha256").read_bytes()
    seal(copy)
    with pytest.raises(BundleRefused, match="module named 'of_nobody'"):
        ServingModel.load(copy)
    (copy / "files.sha256").write_bytes(unsealed)
    other = BundleStore(FolderArtifacts(tmp_path / "artifacts"))
    copy.rename(other.root / seeing.digest)
    with pytest.raises(BundleDamaged, match=r"decode\.py differs from"):
        other.open(seeing.digest)
    (other.root / seeing.digest / "decode.py").unlink()
    with pytest.raises(BundleDamaged, match=r"lacks decode\.py"):
        other.open(seeing.digest)
    assert store.open(seeing.digest) == seeing


def test_bytecode_beside_a_bundle_never_runs(seeing: Bundle, served: ServingModel, tmp_path: Path) -> None:
    """No digest covers `__pycache__`, and Python's import prefers it to the file."""
    files = {"copy_function": shutil.copyfile, "ignore": shutil.ignore_patterns("__pycache__")}
    copy = Path(shutil.copytree(seeing.folder, tmp_path / "bundle", **files))
    other = tmp_path / "other.py"
    other.write_text("raise RuntimeError('bytecode ran')")
    for name in ("decode.py", "categories.py", "runtime.py"):
        py_compile.compile(
            str(other),
            importlib.util.cache_from_source(str(copy / name)),
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            doraise=True,
        )
    golden = pl.read_parquet(copy / "golden.parquet")
    assert (ServingModel.load(copy).predict(golden) == served.predict(golden)).all()
    through_mlflow = mlflow.pyfunc.load_model(str(copy))
    found = np.asarray(through_mlflow.predict(golden.drop("__prediction__").to_pandas()))
    assert found == pytest.approx(served.predict(golden), rel=1e-5)


def test_pictures_are_explained_and_timed_like_columns(
    contents: BundleContents, seeing: Bundle, served: ServingModel, tmp_path: Path
) -> None:
    """A blob has an importance, and no curve: it has no order and no frequent values."""
    rows = contents.rows.head(60).with_columns(label=pl.lit(0.0), date=pl.int_range(60) // 10)
    spec = EvaluationSpec.model_validate(
        {"objective": "regression", "draws": 100, "gates": [{"name": "g", "metric": "rmse", "at_most": 1}]}
    )
    inputs = {column.name: column.kind for column in served.inputs}
    labelled = rows.with_columns(pl.Series("label", served.predict(rows)))
    found = explain(labelled, served.predict, inputs, spec, label="label", shown=list(inputs))
    assert {one.column: (one.added.value or 0) > 0 for one in found.columns} == {
        "delay": True,
        "picture": True,
    }
    assert [one.column for one in found.dependence] == ["delay"]
    cost = serving_cost_of(seeing, contents.rows.head(12), FolderArtifacts(tmp_path), "run")
    assert (cost.row.rows, cost.batch.rows) == (1, 12)
