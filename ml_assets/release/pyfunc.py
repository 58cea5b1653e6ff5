"""A bundle as `mlflow.pyfunc`: pandas in, predictions out. MLflow runs the copy that lies in the bundle.

A sample may come as base64, as MLflow has bytes in JSON.

Here: conversion from pandas, nothing else. Not here: prediction, which is the bundle's own `runtime.py`.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# (pandas has no types, mlflow has some)

import base64
import importlib.util
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
    """Hands rows to the bundle's `ServingModel`."""

    def load_context(self, context: Any) -> None:
        """Load the bundle beside this file; refuses where golden rows, as pandas holds them, are answered
        differently."""
        folder = Path(context.artifacts["bundle"])
        self.model = _runtime(folder / "runtime.py").ServingModel.load(folder)
        self.model.replay_golden_rows(self._predict_golden)

    def _predict_golden(self, golden: pl.DataFrame) -> Any:
        return self.predict(None, _as_pandas(golden, self.model.inputs))

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> Any:
        """`[rows]` float64 predictions for a pandas frame with the raw columns."""
        columns = {
            column.name: _series(column, model_input[column.name])
            for column in self.model.inputs
            if column.name in model_input.columns
        }
        return self.model.predict(pl.DataFrame(columns))


def _series(column: Any, values: Any) -> pl.Series:
    """A pandas column with its missing values as null, and numbers and text as in the feature table."""
    kind = values.dtype.kind if isinstance(values.dtype, np.dtype) else "O"  # a pandas type holds objects
    if column.kind == "numeric" and kind in "iufb":
        return pl.Series(column.name, values.to_numpy())
    missing = values.isna().to_numpy()
    pairs = zip(values.to_numpy(dtype=object), missing, strict=True)
    present = [None if is_missing else value for value, is_missing in pairs]
    if column.kind == "sample":  # text is what JSON makes of bytes, which has none
        return pl.Series(
            column.name,
            [base64.b64decode(one) if isinstance(one, str) else one for one in present],
            pl.Binary,
        )
    # The runtime makes a category's text of it; MLflow may have made doubles of single-precision numbers before.
    return pl.Series(column.name, present, pl.Float32 if column.dtype == "float32" else None)


def _as_pandas(frame: pl.DataFrame, inputs: Any) -> pd.DataFrame:
    """Numbers in pandas' own types, where null is NaN; everything else as Python's objects."""
    kinds = {column.name: None if column.kind == "numeric" else object for column in inputs}
    return pd.DataFrame({name: pd.Series(frame[name].to_list(), dtype=kind) for name, kind in kinds.items()})


def _runtime(path: Path) -> ModuleType:
    """The module in `path` under a name of its own: two loaded bundles may bring different ones."""
    name = f"bundle_runtime_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


mlflow.models.set_model(BundleModel())
