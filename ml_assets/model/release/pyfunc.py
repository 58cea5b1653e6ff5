"""Bundle as `mlflow.pyfunc`: pandas in, predictions out. MLflow runs the copy inside the bundle.

A blob may be base64, which is MLflow's form of bytes in JSON.

Here: the check that this is the registered bundle, and the conversion from pandas. Not here: prediction (the bundle's
own `runtime.py`).
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# (pandas has no types, mlflow has some)

import base64
import hashlib
import re
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import mlflow.models
import mlflow.pyfunc
import numpy as np
import pandas as pd
import polars as pl

LISTING = "files.sha256"
_OF_REGISTRY = "registered_model_meta"
"""File that MLflow adds to a version that it copies: name and number."""


class BundleReplaced(Exception):
    """The bundle is another one than its address in the registry names."""


class BundleModel(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    """MLflow model that passes rows to the bundle's `ServingModel`."""

    def load_context(self, context: Any) -> None:
        """Load the bundle beside this file.

        Raise `BundleReplaced` if it is not the bundle of the registered version, and `GoldenMismatch` if golden rows
        from pandas give other predictions.
        """
        folder = Path(context.artifacts["bundle"])
        _require_registered(folder)
        self.runtime = _runtime(folder / "runtime.py")
        self.model = self.runtime.ServingModel.load(folder)
        self.model.replay_golden_rows(self._predict_golden)

    def _predict_golden(self, golden: pl.DataFrame) -> Any:
        return np.asarray(self.predict(None, _as_pandas(golden, self.model.inputs)))

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> Any:
        """Return float64 predictions for a pandas frame with the raw columns: `[rows]`, or a frame with a column
        for each number of a prediction: the probability of each class, or the figures of a text. Raises the errors of
        `ServingModel.predict`."""
        columns = {
            column.name: self._column(column, model_input[column.name])
            for column in self.model.inputs
            if column.name in model_input.columns
        }
        answer = self.model.predict(pl.DataFrame(columns))
        if not self.model.columns:
            return answer
        return pd.DataFrame(answer, columns=list(self.model.columns), index=model_input.index)

    def _column(self, column: Any, values: Any) -> pl.Series:
        """Return a pandas column as a series. Raises `InputRefused` if its values have no common type."""
        try:
            return _series(column, values)
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
            kinds = ", ".join(sorted({type(value).__name__ for value in values}))
            raise self.runtime.InputRefused(
                f"column {column.name!r} holds values of {kinds}, which the model cannot read together ({error}): send "
                "values of one kind, and null where a value is unknown"
            ) from error


def _series(column: Any, values: Any) -> pl.Series:
    """Convert a pandas column: missing values become null, numbers and text are as in the feature table."""
    kind = values.dtype.kind if isinstance(values.dtype, np.dtype) else "O"  # pandas' own types hold objects
    if column.kind == "numeric" and kind in "iufb":
        return pl.Series(column.name, values.to_numpy())
    missing = values.isna().to_numpy()
    pairs = zip(values.to_numpy(dtype=object), missing, strict=True)
    present = [None if is_missing else value for value, is_missing in pairs]
    if column.kind == "blob":  # JSON has no bytes, so a blob from JSON is base64 text
        return pl.Series(
            column.name,
            [base64.b64decode(one) if isinstance(one, str) else one for one in present],
            pl.Binary,
        )
    # The runtime converts categories to text. MLflow may have converted float32 categories to float64 before.
    return pl.Series(column.name, present, pl.Float32 if column.dtype == "float32" else None)


def _as_pandas(frame: pl.DataFrame, inputs: Any) -> pd.DataFrame:
    """Convert numbers to pandas' own types, with NaN for null, and everything else to Python objects."""
    kinds = {column.name: None if column.kind == "numeric" else object for column in inputs}
    return pd.DataFrame({name: pd.Series(frame[name].to_list(), dtype=kind) for name, kind in kinds.items()})


def _require_registered(folder: Path) -> None:
    """Raise `BundleReplaced` unless the digest of the listing is the one that the version's address ends with.

    MLflow lets nobody change the address of a version. The check comes before any other code of the bundle runs. It
    cannot find a replaced `pyfunc.py`, because MLflow runs that file itself.
    """
    expected = _registered_digest(folder)
    if not expected:
        return
    listing = (folder / LISTING).read_bytes() if (folder / LISTING).is_file() else b""
    listed = {line[66:]: line[:64] for line in listing.decode(errors="replace").splitlines()}
    runtime = hashlib.sha256((folder / "runtime.py").read_bytes()).hexdigest()
    if hashlib.sha256(listing).hexdigest() != expected or listed.get("runtime.py") != runtime:
        raise BundleReplaced(
            f"{folder} is not bundle {expected[:12]}, which was registered: its files were replaced. Move the folder "
            "away and materialize the model again, which writes the same bundle"
        )


def _registered_digest(folder: Path) -> str:
    """Return the digest in the name of `folder`, or in the address of the version that MLflow copied there.

    Empty for another copy. Warn if MLflow's registry cannot be asked.
    """
    if re.fullmatch("[0-9a-f]{64}", folder.name):
        return folder.name
    if not (folder / _OF_REGISTRY).is_file():
        return ""
    found = dict(
        line.split(": ", 1) for line in (folder / _OF_REGISTRY).read_text().splitlines() if ": " in line
    )
    name, version = (found.get(key, "").strip("'\"") for key in ("model_name", "model_version"))
    try:
        source = mlflow.MlflowClient().get_model_version(name, version).source or ""
    except Exception as error:  # of MLflow, of its store, or of the network
        warnings.warn(f"the bundle in {folder} was not compared with {name}/{version}: {error}", stacklevel=2)
        return ""
    digest = source.rstrip("/").rpartition("/")[2]
    return digest if re.fullmatch("[0-9a-f]{64}", digest) else ""


def _runtime(path: Path) -> ModuleType:
    """Load the module in `path`, and not its bytecode, as `load_module` there does for the others."""
    module = ModuleType(f"bundle_runtime_{abs(hash(path))}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look up their module
    exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), module.__dict__)
    return module


mlflow.models.set_model(BundleModel())
