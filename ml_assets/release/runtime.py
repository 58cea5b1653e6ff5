"""Serving a bundle: load the graph, replay the golden rows, predict from raw columns.

This file is copied into every bundle and runs there alone, so it needs numpy, polars and onnxruntime and
imports nothing of this project. Not here: how a bundle is made (`bundle`, `graph`) and MLflow (`pyfunc`).
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (onnxruntime has no types)

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnxruntime as ort
import polars as pl
from numpy.typing import NDArray

FORMAT = 1
"""Version of the layout of a bundle; a runtime reads its own only."""
GRAPH, FACTS, GOLDEN = "model.onnx", "bundle.json", "golden.parquet"
GOLDEN_OUTPUT = "__prediction__"
"""Column of `golden.parquet` with what the trained torch module answered."""

GOLDEN_TOLERANCE = 1e-5
"""Largest accepted difference from the trained model: ten times what a bundle is made with, because kernels
differ between processors in the last bits."""
_ROWS_AT_ONCE = 65_536
"""Larger frames are cut, so that memory for layers stays small."""


class BundleRefused(Exception):
    """A bundle cannot be served as it is; the message says why and what to do."""


class GoldenMismatch(BundleRefused):
    """The bundle answers its golden rows differently than the trained model did."""


class InputRefused(ValueError):
    """Rows lack a column or have another kind of value in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputColumn:
    """One raw column the model reads."""

    name: str
    kind: str
    """`numeric` (a number or a boolean; null means unknown) or `category` (read as text)."""
    dtype: str
    """Type in the feature table the model was trained on, such as `int64` or `string`; any type of the
    same kind is accepted."""


class ServingModel:
    """A loaded bundle. Safe to use from several threads."""

    def __init__(self, folder: Path, facts: Mapping[str, Any], session: ort.InferenceSession) -> None:
        self.folder = folder
        self.objective: str = facts["objective"]
        """`binary`: predictions are probabilities of the label 1; `regression`: values."""
        self.inputs = tuple(InputColumn(**column) for column in facts["inputs"])
        self.output: str = facts["output"]["name"]
        self._null: str = facts["null_category"]
        self._numeric = [column.name for column in self.inputs if column.kind == "numeric"]
        self._category = [column.name for column in self.inputs if column.kind == "category"]
        self._session = session

    @classmethod
    def load(cls, folder: Path, *, threads: int = 1, tolerance: float = GOLDEN_TOLERANCE) -> Self:
        """The model in `folder`, after it has answered its golden rows as the trained model did.

        `threads` is the number onnxruntime uses inside one call. `tolerance` is the largest difference of an
        answer, absolute for answers up to 1 and relative above. Raises `BundleRefused` for a folder of
        another format and `GoldenMismatch` where an answer differs.
        """
        if not (folder / FACTS).is_file():
            raise BundleRefused(f"{folder} holds no {FACTS}: it is not a bundle, or its copy was cut short")
        facts = json.loads((folder / FACTS).read_text())
        if facts["format"] != FORMAT:
            raise BundleRefused(
                f"bundle {folder} has format {facts['format']}, this runtime reads {FORMAT}: "
                "use the runtime.py that lies inside the bundle"
            )
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = ort.InferenceSession(folder / GRAPH, options, providers=["CPUExecutionProvider"])
        model = cls(folder, facts, session)
        model._replay_golden_rows(tolerance)
        return model

    def predict(self, frame: pl.DataFrame) -> NDArray[np.float64]:
        """`[rows]` predictions for raw rows, in their order; further columns are ignored.

        Null and NaN numbers are filled as in training, null and unseen categories read as unknown. Raises
        `InputRefused` where a column is missing or text stands where a number is expected.
        """
        self._require(frame)
        predictions = np.empty(frame.height, dtype=np.float64)
        for start in range(0, frame.height, _ROWS_AT_ONCE):
            rows = frame.slice(start, _ROWS_AT_ONCE)
            predictions[start : start + rows.height] = self._run(self._feed(rows))
        return predictions

    def predict_row(self, row: Mapping[str, float | int | bool | str | None]) -> float:
        """The prediction for one raw row, without the cost of a frame. Raises as `predict`."""
        try:
            numbers = [row[name] for name in self._numeric]
            words = [row[name] for name in self._category]
        except KeyError as error:
            raise InputRefused(f"column {error} is missing; the row has {sorted(row)}") from error
        for name, value in zip(self._numeric, numbers, strict=True):
            if isinstance(value, str):
                raise InputRefused(f"column {name!r} holds text, the model reads a number there: {value!r}")
        matrix = np.array([[np.nan if value is None else value for value in numbers]], dtype=np.float32)
        feed: dict[str, NDArray[Any]] = {name: matrix[:, i : i + 1] for i, name in enumerate(self._numeric)}
        for name, value in zip(self._category, words, strict=True):
            feed[name] = np.array([[self._null if value is None else _text(value)]], dtype=object)
        return float(self._run(feed)[0])

    def _feed(self, rows: pl.DataFrame) -> dict[str, NDArray[Any]]:
        # In column order each slice is contiguous, and onnxruntime reads it without a copy.
        matrix = np.empty((rows.height, len(self._numeric)), dtype=np.float32, order="F")
        feed: dict[str, NDArray[Any]] = {}
        for i, name in enumerate(self._numeric):
            column = rows[name]
            # numpy has no null: floats and integers come out as NaN there, other types must be cast first.
            is_plain = column.dtype.is_float() or column.dtype.is_integer()
            matrix[:, i] = (column if is_plain else column.cast(pl.Float64)).to_numpy()
            feed[name] = matrix[:, i : i + 1]
        for name in self._category:
            feed[name] = rows[name].cast(pl.String).fill_null(self._null).to_numpy().reshape(-1, 1)
        return feed

    def _run(self, feed: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
        outputs: Any = self._session.run([self.output], feed)
        return outputs[0]

    def _require(self, frame: pl.DataFrame) -> None:
        schema = frame.schema
        missing = [column.name for column in self.inputs if column.name not in schema]
        if missing:
            raise InputRefused(
                f"columns {missing} are missing; the frame has {frame.columns}. "
                f"The model reads {[column.name for column in self.inputs]}"
            )
        for name in self._numeric:
            dtype = schema[name]
            if not (dtype.is_numeric() or dtype == pl.Boolean or dtype == pl.Null):
                raise InputRefused(f"column {name!r} is {dtype}, the model reads a number there: cast it")

    def _replay_golden_rows(self, tolerance: float) -> None:
        golden = pl.read_parquet(self.folder / GOLDEN)
        expected = golden[GOLDEN_OUTPUT].to_numpy()
        worst = _largest_difference(self.predict(golden), expected)
        if not worst <= tolerance:
            raise GoldenMismatch(
                f"bundle {self.folder} answers its {golden.height} golden rows differently than the trained "
                f"model did: largest difference {worst:.3g}, allowed {tolerance:g}. Files were "
                "changed, or this onnxruntime computes something else: fetch the bundle again, or register "
                "the model again with this version"
            )


def _largest_difference(answered: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    """Largest `|a - b| / max(1, |b|)`; infinite where one of the two is not finite."""
    if not (np.isfinite(answered).all() and np.isfinite(expected).all()):
        return float("inf")
    return float((np.abs(answered - expected) / np.maximum(1.0, np.abs(expected))).max())


def _text(value: float | int | bool | str) -> str:
    """As polars casts to text, so that one row reads like a column."""
    return str(value).lower() if isinstance(value, bool) else str(value)
