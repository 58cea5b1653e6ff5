"""Bundle as `mlflow.pyfunc`: pandas in, predictions out. MLflow runs the copy inside the bundle.

A blob may be base64, which is MLflow's form of bytes in JSON.

Here: only the conversion from pandas. Not here: prediction (the bundle's own `runtime.py`).
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# (pandas has no types, mlflow has some)

import base64
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import mlflow.models
import mlflow.pyfunc
import numpy as np
import pandas as pd
import polars as pl


class BundleModel(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    """MLflow model that passes rows to the bundle's `ServingModel`."""

    def load_context(self, context: Any) -> None:
        """Load the bundle beside this file. `GoldenMismatch` if golden rows from pandas give other predictions."""
        folder = Path(context.artifacts["bundle"])
        self.model = _runtime(folder / "runtime.py").ServingModel.load(folder)
        self.model.replay_golden_rows(self._predict_golden)

    def _predict_golden(self, golden: pl.DataFrame) -> Any:
        return np.asarray(self.predict(None, _as_pandas(golden, self.model.inputs)))

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> Any:
        """Return float64 predictions for a pandas frame with the raw columns: `[rows]`, or a frame with a column
        for each number of a prediction: the probability of each class, or the figures of a text."""
        columns = {
            column.name: _series(column, model_input[column.name])
            for column in self.model.inputs
            if column.name in model_input.columns
        }
        answer = self.model.predict(pl.DataFrame(columns))
        if not self.model.columns:
            return answer
        return pd.DataFrame(answer, columns=list(self.model.columns), index=model_input.index)


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


def _runtime(path: Path) -> ModuleType:
    """Load the module in `path`, and not its bytecode, as `load_module` there does for the others."""
    module = ModuleType(f"bundle_runtime_{abs(hash(path))}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look up their module
    exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), module.__dict__)
    return module


mlflow.models.set_model(BundleModel())
