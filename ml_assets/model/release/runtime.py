"""Serving of a bundle: load the graph, replay the golden rows, predict from raw columns.

The bundle's graph takes a tensor per raw column, which any ONNX runtime can feed. That is slow: onnxruntime converts
each input, and texts one by one. So this runtime cuts off the graph's first part, standardises numbers and looks up
categories itself, and feeds a matrix of numbers and the ids of each category.

This file is copied into every bundle and runs there beside `categories.py`. It needs numpy, polars, onnx and
onnxruntime, and imports nothing else of this project. onnx and onnxruntime are imported with the first model:
commands that only read the facts of a bundle need none. Not here: building a bundle (`bundle`, `onnx_graph`) and MLflow
(`pyfunc`).
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (onnxruntime has no types)

import hashlib
import json
import re
import sys
import threading
import warnings
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite, nan
from operator import itemgetter
from pathlib import Path
from struct import Struct
from struct import error as StructError
from types import ModuleType, NoneType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl
import polars.selectors
from numpy.typing import NDArray


def load_module(path: Path, kind: str) -> ModuleType:
    """Load the module in `path` under a unique name: two loaded bundles may have different modules.

    Compile the file itself. Python's import would prefer bytecode in `__pycache__`, which no digest covers.
    """
    module = ModuleType(f"bundle_{kind}_{abs(hash(path))}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look up their module
    exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), module.__dict__)
    return module


if TYPE_CHECKING:
    import onnx
    import onnxruntime as ort

if TYPE_CHECKING or __package__:
    from ml_assets.data.features.categories import CategoryValue, NotACategory, category_text, category_texts
else:  # in a bundle: use its own copy, even if a version of the project is installed
    _categories = load_module(Path(__file__).with_name("categories.py"), "categories")
    CategoryValue, NotACategory = _categories.CategoryValue, _categories.NotACategory
    category_text, category_texts = _categories.category_text, _categories.category_texts

FORMAT = 7
"""Version of a bundle's layout. A runtime reads only its own version."""
GRAPH, FACTS, GOLDEN = "model.onnx", "bundle.json", "golden.parquet"
WEIGHTS = "model.safetensors"
"""File of the weights, the only one that the graph may refer to."""
DECODE = "decode.py"
"""File of the function that reads blobs, if rows have them."""
LISTING = "files.sha256"
"""SHA-256 and name of each other file, in the form of `sha256sum`. Its own SHA-256 is the bundle's digest."""
INSIDE = "net/"
"""Prefix of every name in the graph behind its raw columns, so that no name equals the name of a raw column."""
NUMERIC, CATEGORY, BLOB = (f"{INSIDE}{kind}" for kind in ("numeric", "category", "blob"))
"""Tensors in the graph behind the raw columns: standardised numbers `[rows, F]` float32, ids `[rows, C]` int64, and
decoded blobs. A tensor without columns is not in the graph."""
TOKENS = "_of_tokens"
"""Ending of the name of a second output, which a graph for texts has: nats of each token."""
GOLDEN_OUTPUT = "__prediction__"
"""Column of `golden.parquet` with the predictions of the trained model."""

GOLDEN_TOLERANCE = 1e-5
"""Largest accepted difference from the trained model: ten times the tolerance at build time, because kernels of
different processors differ in the last bits."""
_ROWS_AT_ONCE = 32_768
"""Rows to take from a frame at once, with all threads of polars. Each call of polars takes 5 µs, whatever the number
of rows. Larger frames are cut, which bounds memory."""
_ROWS_PER_RUN = 2_048
"""Rows that one thread standardises and runs through the graph at once, so that the arrays stay in the cache of its
processor."""
_WORDS_REMEMBERED = 8_192
"""Ids of single values to remember per category: polars takes 8 µs to convert a value to text."""
_NOT_FLOATS = ~polars.selectors.by_dtype(pl.Float32, pl.Float64)
_BLOB_BYTES_AT_ONCE = 16 * 2**20
"""Bytes of decoded blobs per run of the graph."""


class BundleRefused(Exception):
    """A bundle cannot be served as it is. The message has the reason and the remedy."""


class BundleAltered(BundleRefused):
    """A file of the bundle is missing, or differs from the bundle that was built."""


class GoldenMismatch(BundleRefused):
    """The bundle's predictions for its golden rows differ from those of the trained model."""


def listing_of(folder: Path, names: Iterable[str]) -> str:
    """Return the text of `files.sha256` for files of `folder`: sorted lines `<SHA-256>  <name>`."""
    lines: list[str] = []
    for name in sorted(names):
        with (folder / name).open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n")
    return "".join(lines)


def require_unaltered(folder: Path) -> str:
    """Return the digest of the bundle in `folder`. Raise `BundleAltered` if a listed file is missing or differs."""
    copy_again = "Copy the bundle again from where it was made"
    if not (folder / LISTING).is_file():
        raise BundleAltered(
            f"{folder} lacks {LISTING}: it is not a bundle, or its copy is incomplete. {copy_again}"
        )
    listing = (folder / LISTING).read_bytes()
    names = [line[66:] for line in listing.decode(errors="replace").splitlines()]
    # A damaged name may hold any character, also one that no file system accepts.
    if not names or not all(re.fullmatch(r"[\w.-]+", name) for name in names):
        raise BundleAltered(f"{folder / LISTING} is damaged: {copy_again.lower()}")
    if gone := [name for name in names if not (folder / name).is_file()]:
        raise BundleAltered(f"bundle {folder} lacks {', '.join(gone)}: {copy_again.lower()}")
    found = listing_of(folder, names).encode()
    if found != listing:
        pairs = zip(found.splitlines(), listing.splitlines(), strict=False)
        altered = [name for name, (is_, was) in zip(names, pairs, strict=False) if is_ != was] or [LISTING]
        raise BundleAltered(
            f"bundle {folder} was altered: {', '.join(altered)} differs from the bundle that was built. {copy_again}"
        )
    return hashlib.sha256(listing).hexdigest()


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the content of `bundle.json`. Raises `BundleRefused` for a folder of another format."""
    if not (folder / FACTS).is_file():
        raise BundleRefused(
            f"{folder} has no {FACTS}: it is not a bundle, or its copy is incomplete. Copy the bundle again"
        )
    facts: dict[str, Any] = json.loads((folder / FACTS).read_text())
    if facts["format"] != FORMAT:
        raise BundleRefused(
            f"bundle {folder} has format {facts['format']}, this runtime reads {FORMAT}: use the "
            f"runtime.py in the bundle, or materialize the model again"
        )
    return facts


class InputRefused(ValueError):
    """Rows lack a column, or hold a value of another kind in it."""


class RowRefused(InputRefused):
    """A row of a frame has no prediction."""

    def __init__(self, before: str, row: int, after: str, name: str = "") -> None:
        """Say `before`, the row by its place in the frame (from 0) or by its `name`, `after`."""
        super().__init__(f"{before} row {name or row}{after}")
        self._before, self.row, self._after = before, row, after

    def named(self, name: str) -> Self:
        """Return the same error about the row of this name, such as its primary key."""
        return type(self)(self._before, self.row, self._after, name)


class GraphFailed(Exception):
    """onnxruntime cannot run the model's graph for some rows, which are as the model reads them.

    Not the fault of the caller: memory may be short, or an operator refuses a value. So it is no `InputRefused`.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(f"onnxruntime cannot run the model for these rows: {type(error).__name__}: {error}")


class NumberForText(UserWarning):
    """A column of texts holds numbers. They are read as texts, which may differ from the texts they came from: "012" is
    12 as a number."""


class PredictionNotFinite(RowRefused):
    """The model has no finite prediction for a row: its values are too far from those of the training rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputColumn:
    """One raw column that the model reads."""

    name: str
    kind: str
    """`numeric` (a number or a boolean; null means unknown), `category` (read as text) or `blob` (bytes)."""
    dtype: str
    """Type of the column in the feature table at training, such as `int64` or `string`. Any type of the same kind is
    accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobInput:
    """Column with blobs, with dtype and shape of a decoded blob."""

    column: str
    function: str
    """Name of the function in `decode.py`: `(content: bytes) -> array`."""
    dtype: str
    """numpy's name of the array's dtype. The graph's input with the column's name is `[rows, *shape]` of this dtype."""
    shape: tuple[int, ...]

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Create it from its facts in `bundle.json`."""
        shape: tuple[int, ...] = tuple(facts["shape"])
        return cls(column=facts["column"], function=facts["function"], dtype=facts["dtype"], shape=shape)

    @property
    def bytes(self) -> int:
        """Bytes of one decoded blob."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class BlobReader:
    """Reader of a column's blobs: decodes them, in order, into one array."""

    def __init__(self, column: str, decode: Callable[[bytes], Any], like: BlobInput | None = None) -> None:
        """Require dtype and shape of `like` for all blobs; if it is None, those of the first blob."""
        self._column, self._decode, self._like = column, decode, like

    @classmethod
    def of_bundle(cls, folder: Path, column: str, function: str, like: BlobInput | None = None) -> Self:
        """Create a reader with `function` of the `decode.py` in `folder`. `BundleRefused` if it cannot be loaded."""
        try:
            return cls(column, getattr(load_module(folder / DECODE, "decode"), function), like)
        except Exception as error:  # it is the user's code
            raise BundleRefused(
                f"{folder / DECODE} cannot be loaded: {type(error).__name__}: {error}. If a package is "
                f"missing, install the packages of requirements.txt beside it"
            ) from error

    def read(self, contents: Sequence[object], names: Sequence[str]) -> NDArray[Any]:
        """Return the decoded blobs, `[rows, ...]`. `names` name the row of each of `contents` for errors.

        Without `like`, at least one blob is needed. Raises `InputRefused` if a blob is missing, cannot be read, or
        has another dtype or shape.
        """
        dtype, shape = (np.dtype(self._like.dtype), self._like.shape) if self._like else (None, None)
        arrays: list[NDArray[Any]] = []
        for content, name in zip(contents, names, strict=True):
            array = self._array(content, name)
            if dtype is None or shape is None:
                dtype, shape = array.dtype, array.shape
            elif (array.dtype, array.shape) != (dtype, shape):
                raise InputRefused(
                    f"the blob {self._column!r} of {name} was read as {array.dtype}{list(array.shape)}, others as "
                    f"{dtype}{list(shape)}: let `decode` crop or pad them to one shape and type"
                )
            arrays.append(array)
        return np.stack(arrays) if arrays else np.empty((0, *(shape or ())), dtype=dtype)

    def _array(self, content: object, name: str) -> NDArray[Any]:
        if content is None:
            raise InputRefused(
                f"{name} has no {self._column!r}, the blob the model reads: leave such rows out"
            )
        if not isinstance(content, bytes):
            raise InputRefused(
                f"{self._column!r} of {name} is {type(content).__name__}, the model reads bytes there"
            )
        try:
            array = np.asarray(self._decode(content))
        except Exception as error:  # it is the user's code
            raise InputRefused(
                f"the blob {self._column!r} of {name} ({len(content)} bytes) cannot be read, `decode` failed with "
                f"{type(error).__name__}: {error}. Fix it, or leave such rows out"
            ) from error
        if array.dtype.kind not in "biuf":
            raise InputRefused(
                f"the blob {self._column!r} of {name} was read as {array.dtype}: let `decode` return numbers"
            )
        return array


class ServingModel:
    """A loaded bundle. Safe to use from several threads."""

    def __init__(
        self, folder: Path, facts: Mapping[str, Any], session: "ort.InferenceSession", threads: int
    ) -> None:
        """Use `session`, a session of `_behind_raw_columns`."""
        self.folder = folder
        self.objective: str = facts["objective"]
        """Objective of the pipeline, such as `binary`: predictions are probabilities of label 1."""
        self.classes: tuple[str, ...] = tuple(facts["output"]["classes"])
        """Classes of the label; empty if the label has none."""
        self.columns: tuple[str, ...] = tuple(facts["output"]["columns"])
        """Names of the numbers of a prediction: the classes, or for a text `nats_per_token` and `accuracy`; empty if a
        prediction is one number."""
        self.inputs = tuple(InputColumn(**column) for column in facts["inputs"])
        self.output: str = facts["output"]["name"]
        self._link: str = facts["output"]["link"]
        self._null: str = facts["null_category"]
        fitted = facts["fitted"]
        self._numeric = [column["name"] for column in fitted["numeric"]]
        self._mean, self._scale = (
            np.array([column[name] for column in fitted["numeric"]], dtype=np.float64)
            for name in ("mean", "scale")
        )
        types = pl.read_parquet_schema(folder / GOLDEN)
        self._categories = [
            _Category(state["name"], types[state["name"]], state["vocabulary"], self._null)
            for state in fitted["categorical"]
        ]
        like = BlobInput.from_facts(facts["blob"]) if "blob" in facts else None
        self.blob = "" if like is None else like.column
        """Name of the column with blobs; empty if the model reads none."""
        self._blobs = None if like is None else BlobReader.of_bundle(folder, like.column, like.function, like)
        per_run = _ROWS_PER_RUN if like is None else _BLOB_BYTES_AT_ONCE // max(1, like.bytes)
        self._rows_per_run = max(1, min(per_run, _ROWS_PER_RUN))
        self._session = session
        self._graph_inputs = tuple(found.name for found in session.get_inputs())
        self._threads = threads
        self._numbers_of = _getter(self._numeric)
        self._words_of = _getter([category.name for category in self._categories])
        self._pack_numbers = Struct(f"{len(self._numeric)}d").pack_into
        self._id_tables = [_Ids(category) for category in self._categories]
        self._row = _RowBuffers(
            session, self.output, len(self._numeric), len(self._categories), like, len(self.columns)
        )

    @classmethod
    def load(cls, folder: Path, *, threads: int = 1, tolerance: float = GOLDEN_TOLERANCE) -> Self:
        """Load the model in `folder` and check its predictions for the golden rows.

        `threads` is the number of threads that `predict` uses for a large frame. `tolerance` is the largest accepted
        difference of a prediction (of its logarithm if it is a count); absolute up to 1, relative to the prediction, or
        to the deviation of all, above. Raises
        `BundleRefused` for a folder of another format, `BundleAltered` if one bit of a file was altered, and
        `GoldenMismatch` if a prediction differs.
        """
        require_unaltered(folder)
        facts = read_facts(folder)
        try:
            session = _session(_behind_raw_columns(folder, facts), folder)
        except BundleRefused:
            raise
        except Exception as error:  # protobuf, onnx and onnxruntime have error types of their own
            raise BundleRefused(
                f"{folder / GRAPH} cannot be loaded: {type(error).__name__}: {error}. Its file was changed, or this "
                "onnxruntime lacks an operation: fetch the bundle again, or install its requirements.txt"
            ) from error
        model = cls(folder, facts, session, threads)
        # Single rows first: onnxruntime plans its memory for the shape of the first run. In the other order, each row
        # takes 3 µs more.
        model.replay_golden_rows(model._predict_one_by_one, tolerance)
        model.replay_golden_rows(model.predict, tolerance)
        if model._numeric or model._categories:  # otherwise the graph has no part for raw columns
            model.replay_golden_rows(model._predict_by_whole_graph, tolerance)
        return model

    def replay_golden_rows(
        self, predict: Callable[[pl.DataFrame], NDArray[np.float64]], tolerance: float = GOLDEN_TOLERANCE
    ) -> None:
        """Raise `GoldenMismatch` if `predict` and the trained model differ on the golden rows, and `BundleRefused` if
        onnxruntime cannot run the graph.

        Each way to call the model (a frame, one row, the whole graph, pandas) reads raw values by its own code, so each
        has to pass.
        """
        golden = pl.read_parquet(self.folder / GOLDEN)
        expected = golden[GOLDEN_OUTPUT].to_numpy()
        try:
            found = predict(golden.drop(GOLDEN_OUTPUT))
        except GraphFailed as error:
            raise BundleRefused(
                f"bundle {self.folder} cannot predict its own golden rows: {error}. Fetch the bundle again, or install "
                "its requirements.txt"
            ) from error
        worst = _largest_difference(found, expected, self._link)
        if not worst <= tolerance:
            raise GoldenMismatch(
                f"bundle {self.folder} and its trained model predict different values for its {golden.height} "
                f"golden rows: largest difference {worst:.3g}, allowed {tolerance:g}. Files were changed, or "
                f"this onnxruntime computes other values: fetch the bundle again, or register the model again "
                f"with this version"
            )

    def predict(self, frame: pl.DataFrame) -> NDArray[np.float64]:
        """Return predictions for raw rows, in their order; further columns are ignored.

        A prediction is a number, `[rows]`. If the label has classes, it is the probability of each of `classes`,
        `[rows, classes]`. For a text it is `[rows, 2]`: the mean nats per predicted token, and the share of tokens
        predicted right.

        Null and NaN numbers are filled as in training. Null and unseen categories count as unknown. A category may have
        another type than in the feature table: the text of a date, or an integer that pandas turned into a float.
        Raises `InputRefused` if a column is missing, a number is text or infinite, a category is a list, a struct or
        bytes, or a blob cannot be read. Raises `PredictionNotFinite` for a row whose prediction would be infinite or
        NaN, and `GraphFailed` if onnxruntime fails.
        """
        self._require(frame)
        shape = (frame.height, len(self.columns)) if self.columns else frame.height
        predictions = np.empty(shape, dtype=np.float64)
        with ThreadPoolExecutor(self._threads) as pool:
            each = pool.map if self._threads > 1 and frame.height > self._rows_per_run else map
            for start in range(0, frame.height, _ROWS_AT_ONCE):
                raw = self._read(frame.slice(start, _ROWS_AT_ONCE))
                target = predictions[start : start + raw.rows]

                def fill(
                    first: int, raw: _Raw = raw, target: NDArray[Any] = target, start: int = start
                ) -> None:
                    feed = self._feed(raw, first, start)
                    target[first : first + self._rows_per_run] = self._run(feed, start + first, self.output)

                for _ in each(fill, range(0, raw.rows, self._rows_per_run)):  # raises the first error
                    pass
        return predictions

    def predict_tokens(self, frame: pl.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the nats of each token after the first of each text, `[rows, T - 1]`, 0 behind its end, and the
        texts as tokens, `[rows, T]`, as `decode` returns them.

        Only for a model of texts. Raises the same errors as `predict`.
        """
        self._require(frame)
        nats: list[NDArray[np.float32]] = []
        tokens: list[NDArray[np.int64]] = []
        for start in range(0, frame.height, self._rows_per_run):
            feed = self._feed(self._read(frame.slice(start, self._rows_per_run)), 0, start)
            nats.append(self._run(feed, start, self.output + TOKENS))
            tokens.append(feed[BLOB])
        return np.concatenate(nats).astype(np.float64), np.concatenate(tokens)

    def predict_row(self, row: Mapping[str, CategoryValue | bytes]) -> float | dict[str, float]:
        """Return the prediction for one raw row, without the cost of a frame: a number, or the name of
        each number of a prediction → number, such as class → probability.

        Raises the same errors as `predict`.
        """
        try:
            numbers, words = self._numbers_of(row), self._words_of(row)
            content = row[self.blob] if self.blob else None
        except KeyError as error:
            raise InputRefused(f"column {error} is missing; the row has {sorted(row)}") from error
        buffers = self._row
        if numbers:
            known = [nan if value is None else value for value in numbers]
            try:
                self._pack_numbers(buffers.raw.data, 0, *known)
            except StructError:  # a value that is not a number, or too large for one
                pairs = zip(known, self._numeric, strict=True)
                self._pack_numbers(buffers.raw.data, 0, *[_number(value, name) for value, name in pairs])
            with np.errstate(over="ignore"):
                np.subtract(buffers.raw, self._mean, out=buffers.centred)
                np.divide(buffers.centred, self._scale, out=buffers.centred)
                buffers.numeric[0] = buffers.centred
            if np.count_nonzero(np.isinf(buffers.numeric)):  # half the time of `any`
                raise self._extreme(buffers.numeric, 0, lambda _, column: buffers.raw[column])
        if words:
            try:
                buffers.category[:] = [ids[word] for ids, word in zip(self._id_tables, words, strict=True)]
            except TypeError:  # not hashable, so it cannot be remembered
                pairs = zip(self._categories, words, strict=True)
                buffers.category[:] = [category.id_of(word) for category, word in pairs]
        if self._blobs is not None:
            buffers.blob[:] = self._blobs.read([content], ["the row"])
        try:
            self._session.run_with_iobinding(buffers.binding)
        except Exception as error:  # onnxruntime has error types of its own
            raise GraphFailed(error) from error
        found = buffers.answer.tolist()
        if not all(map(isfinite, found)):
            raise _not_finite(found if self.columns else found[0], 0)
        return dict(zip(self.columns, found, strict=True)) if self.columns else found[0]

    def _read(self, rows: pl.DataFrame) -> "_Raw":
        """Return the model's columns of `rows` as arrays. Polars does this with all its threads: threads that called
        it at the same time would wait for each other's."""
        numbers = None
        if self._numeric:
            columns = rows.select(self._numeric)
            # Whole numbers and booleans have no NaN for null, and polars' decimals are Python objects in numpy.
            is_float = {pl.Float32, pl.Float64}.issuperset(columns.dtypes)
            floats = columns if is_float else columns.cast({_NOT_FLOATS: pl.Float64})
            # `to_numpy` takes four times as long if there are nulls.
            numbers = floats.select(pl.all().fill_null(nan)).to_numpy(order="c")
        return _Raw(
            rows=rows.height,
            numbers=numbers,
            ids=[category.ids_of(rows[category.name]) for category in self._categories],
            blobs=rows[self.blob] if self.blob else None,
        )

    def _feed(self, raw: "_Raw", start: int, first: int) -> dict[str, NDArray[Any]]:
        """Return the graph's inputs for the rows of one run, from row `start` of `raw`, whose first row is row `first`
        of the frame."""
        feed: dict[str, NDArray[Any]] = {}
        run = slice(start, start + self._rows_per_run)
        if raw.numbers is not None:
            values = raw.numbers[run]
            # The same operations as in `NumericState.standardised`, so that the bits are the same.
            with np.errstate(over="ignore"):
                scaled = values.astype(np.float64)
                scaled -= self._mean
                scaled /= self._scale
                matrix = scaled.astype(np.float32)
            if np.isinf(matrix).any():
                raise self._extreme(matrix, first + start, lambda row, column: values[row, column])
            feed[NUMERIC] = matrix
        feed.update({_ids_name(i): ids[run] for i, ids in enumerate(raw.ids)})
        if CATEGORY in self._graph_inputs:
            feed[CATEGORY] = np.stack([ids[run] for ids in raw.ids], axis=1)
        if self._blobs is not None and raw.blobs is not None:
            contents = raw.blobs[run].to_list()
            names = [f"row {first + start + i}" for i in range(len(contents))]
            feed[BLOB] = self._blobs.read(contents, names)
        return feed

    def _run(self, feed: Mapping[str, NDArray[Any]], first: int, output: str) -> NDArray[np.float32]:
        try:
            outputs: Any = self._session.run([output], {name: feed[name] for name in self._graph_inputs})
        except Exception as error:  # onnxruntime has error types of its own
            raise GraphFailed(error) from error
        found: NDArray[np.float32] = outputs[0]
        if not (is_finite := np.isfinite(found)).all():
            row = int(np.nonzero(~is_finite)[0][0])
            raise _not_finite(found[row], first + row)
        return found

    def _extreme(
        self, matrix: NDArray[np.float32], first: int, raw: Callable[[int, int], float]
    ) -> RowRefused:
        """Return the error for the first number in `matrix` that is infinite, or that float32 cannot hold after
        standardising. `raw` returns the value in the row and column as it came."""
        row, column = (int(places[0]) for places in np.nonzero(np.isinf(matrix)))
        return RowRefused(
            f"column {self._numeric[column]!r} holds {raw(row, column):g} in",
            first + row,
            ", beyond what the model can read: send null where the value is unknown",
        )

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
        if self.blob and not isinstance(schema[self.blob], pl.Binary | pl.Null):
            raise InputRefused(f"column {self.blob!r} is {schema[self.blob]}, the model reads bytes there")

    def _predict_one_by_one(self, frame: pl.DataFrame) -> NDArray[np.float64]:
        answers = [self.predict_row(row) for row in frame.iter_rows(named=True)]
        return np.array([list(one.values()) if isinstance(one, dict) else one for one in answers])

    def _predict_by_whole_graph(self, frame: pl.DataFrame) -> NDArray[np.float64]:
        """Predict as a program with nothing but an ONNX runtime does, from a tensor `[rows, 1]` per raw column."""
        feed: dict[str, Any] = {
            name: frame[name].cast(pl.Float64).to_numpy().reshape(-1, 1) for name in self._numeric
        }
        for category in self._categories:
            texts = category.texts_of(frame[category.name]).fill_null(self._null)
            feed[category.name] = texts.to_numpy().reshape(-1, 1)
        if self._blobs is not None:
            feed[self.blob] = self._blobs.read(frame[self.blob].to_list(), ["a golden row"] * frame.height)
        outputs: Any = _session(_graph_of(self.folder), self.folder).run([self.output], feed)
        return outputs[0].astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raw:
    """The model's columns of some rows."""

    rows: int
    numbers: NDArray[Any] | None
    """`[rows, F]`, float32 or float64, NaN for null; None if the model reads no numbers."""
    ids: Sequence[NDArray[np.int64]]
    """Ids `[rows]` of each category."""
    blobs: pl.Series | None
    """Blobs as bytes; None if the model reads none."""


class _Category:
    """One categorical column: its values' ids in the vocabulary, 0 for null and for unseen values."""

    def __init__(self, name: str, dtype: pl.DataType, vocabulary: Sequence[str], null: str) -> None:
        """`dtype` is the column's type in the feature table. The first word of the vocabulary has id 1. `null` is not
        in the vocabulary."""
        self.name = name
        self._dtype = dtype
        self._words = pl.Enum([null, *vocabulary])
        self._id_by_word = {word: i for i, word in enumerate(vocabulary, start=1)}
        self._longest = max(map(len, vocabulary), default=0)
        self._has_warned = False
        self._remembered = lru_cache(_WORDS_REMEMBERED, typed=True)(self.id_of)

    @property
    def ids_of_texts(self) -> dict[str, int]:
        """Ids of texts that are words as they are; empty if the column's values are not texts."""
        return self._id_by_word if self._is_text else {}

    @property
    def _is_text(self) -> bool:
        return isinstance(self._dtype, pl.String | pl.Categorical | pl.Enum)

    def look_up(self, value: Any) -> int:
        """Return `id_of`, which remembers values. Raises `TypeError` if a value is not hashable.

        Does not remember texts longer than all words: anybody could fill the memory with them.
        """
        if type(value) is str and len(value) > self._longest:
            return self.id_of(value)
        return self._remembered(value)

    def id_of(self, value: Any) -> int:
        """Return the id of a single value. Raises `InputRefused` if it has no text."""
        try:
            text = category_text(value, self._dtype)
        except NotACategory as error:
            raise InputRefused(f"column {self.name!r}: {error}") from error
        if not isinstance(value, str | bool | NoneType):
            self._warn_of_numbers()
        return 0 if text is None else self._id_by_word.get(text, 0)

    def ids_of(self, column: pl.Series) -> NDArray[np.int64]:
        """Return the ids of a column's values. Raises `InputRefused` if they have no texts."""
        # A third of the time of `replace_strict`, which builds its table for each call.
        ids = self.texts_of(column).cast(self._words, strict=False).to_physical()
        return ids.fill_null(0).cast(pl.Int64).to_numpy()

    def texts_of(self, column: pl.Series) -> pl.Series:
        """Return the texts of a column's values, as in the vocabulary. Raises `InputRefused` if they have none."""
        if column.dtype.is_numeric():
            self._warn_of_numbers()
        try:
            return category_texts(column, self._dtype)
        except NotACategory as error:
            raise InputRefused(f"column {self.name!r}: {error}") from error

    def _warn_of_numbers(self) -> None:
        """Warn once of numbers in a column of texts."""
        if self._is_text and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"column {self.name!r} is text in the feature table and holds numbers: 12 and 12.0 are read as '12'. "
                "Send texts, so that no digit is lost",
                NumberForText,
                stacklevel=2,
            )


class _Ids(dict[Any, int]):
    """Ids of one category's values: a plain table of its words, which asks the category for any other value."""

    def __init__(self, category: _Category) -> None:
        super().__init__(category.ids_of_texts)
        self._category = category

    def __missing__(self, value: Any) -> int:
        return self._category.look_up(value)


class _RowBuffers(threading.local):
    """Memory of one row, for each thread its own, bound to the session once: converting arrays for each call costs
    onnxruntime more time than a small network."""

    def __init__(
        self,
        session: "ort.InferenceSession",
        output: str,
        numeric: int,
        category: int,
        blob: BlobInput | None,
        columns: int,
    ) -> None:
        """Bind inputs of `numeric` numbers, `category` ids and a `blob`, and an answer of `columns` numbers or of
        one, if it has no columns."""
        import onnxruntime as ort

        self.raw, self.centred = np.zeros(numeric), np.zeros(numeric)
        self.numeric = np.zeros((1, numeric), dtype=np.float32)
        self.category = np.zeros(category, dtype=np.int64)
        self.blob = np.zeros((1, *blob.shape), dtype=blob.dtype) if blob else np.zeros((1, 0))
        self.answer = np.zeros(columns or 1, dtype=np.float32)
        inputs = {NUMERIC: self.numeric, CATEGORY: self.category.reshape(1, category), BLOB: self.blob}
        inputs |= {_ids_name(i): self.category[i : i + 1] for i in range(category)}
        self.binding = session.io_binding()
        for found in session.get_inputs():
            self.binding.bind_ortvalue_input(found.name, ort.OrtValue.ortvalue_from_numpy(inputs[found.name]))
        answer = self.answer.reshape(1, columns) if columns else self.answer
        self.binding.bind_ortvalue_output(output, ort.OrtValue.ortvalue_from_numpy(answer))


def _graph_of(folder: Path) -> "onnx.ModelProto":
    """Return the bundle's graph without its weights. `BundleRefused` if it refers to another file than `WEIGHTS`."""
    import onnx
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    graph = onnx.load(folder / GRAPH, load_external_data=False)
    for tensor in graph.graph.initializer:
        if uses_external_data(tensor):
            location = ExternalDataInfo(tensor).location
            if location != WEIGHTS:
                raise BundleRefused(
                    f"{folder / GRAPH} reads {tensor.name!r} from {location!r}, and a bundle reads its weights from "
                    f"{WEIGHTS} alone: fetch the bundle again"
                )
    return graph


def _behind_raw_columns(folder: Path, facts: Mapping[str, Any]) -> "onnx.ModelProto":
    """Return the part of the bundle's graph that takes `NUMERIC`, `CATEGORY` and `BLOB`, as far as it has them.

    If each use of `CATEGORY` takes one column of it, the part takes ids `[rows]` of each used column instead
    (`_ids_name`). Each of these uses costs a row half a microsecond.
    """
    import onnx.utils

    whole = _graph_of(folder)
    has = {
        NUMERIC: facts["fitted"]["numeric"],
        CATEGORY: facts["fitted"]["categorical"],
        BLOB: facts.get("blob"),
    }
    outputs = [output.name for output in whole.graph.output]
    part = onnx.utils.Extractor(whole).extract_model([name for name in has if has[name]], outputs)
    _take_ids_by_column(part.graph, len(facts["fitted"]["categorical"]))
    return part


def _take_ids_by_column(graph: "onnx.GraphProto", columns: int) -> None:
    """Replace the input `CATEGORY` by an input for each column that a node gathers, if nothing else reads it."""
    import onnx
    from onnx.external_data_helper import uses_external_data

    constants = {
        constant.name: onnx.numpy_helper.to_array(constant)
        for constant in graph.initializer
        if not uses_external_data(constant)
    }
    nodes = [node for node in graph.node if CATEGORY in node.input]
    found: dict[int, list[onnx.NodeProto]] = {}
    for node in nodes:
        index = constants.get(node.input[1]) if node.op_type == "Gather" else None
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        if index is None or index.ndim or axis != 1 or not -columns <= index < columns:
            return
        found.setdefault(int(index) % columns, []).append(node)
    is_nested = any(
        attribute.HasField("g") or attribute.graphs for node in graph.node for attribute in node.attribute
    )
    if not found or is_nested:  # a nested graph may read it, too
        return
    for column, gathers in found.items():
        name = _ids_name(column)
        graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["rows"]))
        for node in gathers:
            node.CopyFrom(onnx.helper.make_node("Identity", [name], node.output))
    graph.input.remove(next(found for found in graph.input if found.name == CATEGORY))


def _ids_name(column: int) -> str:
    """Return the name of the graph's input for the ids of one category."""
    return f"{CATEGORY} {column}"


def _session(graph: "onnx.ModelProto", folder: Path) -> "ort.InferenceSession":
    """Return a session of a graph whose weights are in `folder`. onnxruntime maps their file into memory."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    # One thread a call: `predict` gives each of its threads a part of the rows.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _getter(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Return a function of a row that returns its values of these columns. It raises `KeyError`."""
    if len(names) > 1:
        return itemgetter(*names)  # three times as fast as a comprehension
    return lambda row: tuple(row[name] for name in names)


def _number(value: Any, name: str) -> float:
    """Return a value of a numeric column as a float, NaN for None. Raises `InputRefused`."""
    if value is None:
        return nan
    if isinstance(value, str | bytes):
        raise InputRefused(f"column {name!r} holds text, but the model reads a number there: {value!r}")
    try:
        return array("d", [value])[0]
    except TypeError:
        raise InputRefused(
            f"column {name!r} holds {type(value).__name__}, but the model reads a number there: {value!r}"
        ) from None
    except OverflowError:
        return inf if value > 0 else -inf


def _not_finite(prediction: object, row: int) -> PredictionNotFinite:
    return PredictionNotFinite(
        f"the model predicts {prediction} for",
        row,
        ", which has no meaning: its values are far from those of the training rows. Send null for values that "
        "are wrong, or train on rows like this one",
    )


def _largest_difference(answered: NDArray[np.float64], expected: NDArray[np.float64], link: str) -> float:
    """Return the largest `|a - b| / max(1, |b|, deviation of b)`; infinite if a value is not finite.

    A number near zero can be the difference of terms as large as others are, so the others bound its rounding.
    Counts are compared by their logarithms, which the network computes: one rounding of ln 3000 in float32 changes the
    count by 1e-6 of it. Texts are compared by their nats alone: one rounding decides which of two equally likely tokens
    is the most likely.
    """
    if not (np.isfinite(answered).all() and np.isfinite(expected).all()):
        return float("inf")
    if link == "token log_softmax":
        answered, expected = answered[:, :1], expected[:, :1]
    if link == "exp":
        answered, expected = (
            np.log(np.maximum(one, np.finfo(np.float32).tiny)) for one in (answered, expected)
        )
    scale = np.maximum(max(1.0, float(expected.std())), np.abs(expected))
    return float((np.abs(answered - expected) / scale).max())
