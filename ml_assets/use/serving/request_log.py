"""Log of requests: what was asked, what each version predicted, how long it took.

A server adds rows; a thread writes them as Parquet files to the artifacts, under `serving/<model>/<day>`, and
`read_requests` reads a day. A request never waits for the log: rows that find no room are dropped and counted. A killed
server loses the rows of its last seconds. Not here: deletion of old days (`log_retention`), decisions about versions.
"""

import hashlib
import io
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from logging import getLogger
from pathlib import Path
from sys import getsizeof
from types import TracebackType
from typing import Literal, Self

import polars as pl

from resources.artifacts import Artifacts, ArtifactsError, ArtifactsRefused, ArtifactsUnavailable

Role = Literal["production", "canary", "shadow"]
"""Role of a version in the answer to a request. A prediction of a `shadow` is logged and never answered."""
SCHEMA: dict[str, pl.DataType] = {
    "request_id": pl.String(),
    "client_id": pl.String(),
    "place": pl.Int32(),
    "at": pl.Datetime("us", "UTC"),
    "model": pl.String(),
    "version": pl.Int64(),
    "bundle_digest": pl.String(),
    "role": pl.String(),
    "assigned": pl.String(),
    "request_rows": pl.Int32(),
    "entity": pl.String(),
    "row": pl.String(),
    "prediction": pl.List(pl.Float64()),
    "latency_us": pl.Int64(),
    "error": pl.String(),
    "counts": pl.Boolean(),
    "sender": pl.String(),
    "share": pl.Float64(),
}
"""Columns of the log, as `LoggedRow` describes them. `row` is JSON, `share` that of the requests that the server logs:
a row stands for 1 / share rows."""
ROOT = "serving"
"""Folder of all logs among the artifacts."""
LATE_DAYS = 7
"""Days after which a file of the log is late: the watch of a canary does not count it any more."""

_ROW_BYTES = 600
"""Memory of a row beside its JSON, entity, error and prediction."""
_AS_THEY_ARE = [name for name in SCHEMA if name not in ("at", "row", "share")]
_LOGGER = getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRow:
    """One raw row of a request, with the prediction of one version. A shadow's prediction is a row of its own."""

    request_id: str
    """Made by the server: the rows with the same one are one request."""
    client_id: str | None = None
    """X-Request-Id of the client. Several requests may have the same one."""
    place: int
    """Index of the row in its request, from 0."""
    at_us: int
    """Arrival of the request, microseconds since 1970 in UTC."""
    model: str
    version: int
    """MLflow's number."""
    bundle_digest: str
    role: Role
    assigned: Role
    """Side of the row's entity. If the canary fails, `production` answers a row that is assigned to `canary`."""
    request_rows: int
    """Rows of its request."""
    entity: str | None
    """Name of the entity (`assignment.entity_of`); None if the pipeline declares none."""
    row: bytes
    """The raw row as JSON. Bytes of a blob are base64."""
    prediction: Sequence[float] | None
    """Numbers of the prediction, in the order of `ServingModel.columns`, or the only one; None after an error, also
    of another row if it refused the whole request."""
    latency_us: int
    """Microseconds that the version took for all of its rows of the request."""
    error: str | None = None
    """Kind of the error and its message, such as `InputRefused: column 'hour' is missing`."""
    counts: bool = True
    """False for a row that is no evidence about a canary: neither version could answer it, or it took too long beside
    other rows of its list."""
    sender: str = ""
    """Name of the client's network address (`assignment.sender_of`); empty without a canary."""


def day_folder(model: str, day: date) -> str:
    """Return the name of the folder of a model's requests on a day (UTC) among the artifacts."""
    return f"{ROOT}/{model}/{day.isoformat()}"


def days_of(artifacts: Artifacts, model: str) -> dict[date, dict[str, int]]:
    """Return day → file → bytes of all stored requests of a model, oldest first. Raises `ArtifactsError`.

    Files that killed servers left half-written are among them. Folders of other names are not.
    """
    found: dict[date, dict[str, int]] = {}
    for path, size in artifacts.files(f"{ROOT}/{model}").items():
        name, _, file = path.partition("/")
        try:
            day = date.fromisoformat(name)
        except ValueError:
            continue
        if file and day.isoformat() == name:
            found.setdefault(day, {})[file] = size
    return dict(sorted(found.items()))


def read_requests(artifacts: Artifacts, model: str, day: date) -> pl.DataFrame:
    """Return all logged rows of `model` that arrived on `day` (UTC), of all its servers, in order of arrival.

    The columns are those of `SCHEMA`; without a log, the frame is empty. Raises `ArtifactsError`, also for a damaged
    file.
    """
    rows, faults = read_files(artifacts, model, day, files_after(artifacts, model, day, {}))
    if faults:
        raise ArtifactsRefused("; ".join(faults.values()))
    return rows


def files_after(artifacts: Artifacts, model: str, day: date, read: Mapping[str, int]) -> list[str]:
    """Return the files of a day that are newer than those in `read`: server → number of its newest file, sorted.

    A server writes one file after the other, so a file never appears after another with a larger number. Raises
    `ArtifactsError`.
    """
    found = [file for file in artifacts.files(day_folder(model, day)) if file.endswith(".parquet")]
    return sorted(file for file in found if writer_of(file)[1] > read.get(writer_of(file)[0], 0))


def writer_of(file: str) -> tuple[str, int]:
    """Return the server that wrote a file, and the number of the file; a file of another name is its only one."""
    server, _, number = file.removesuffix(".parquet").rpartition("-")
    return (server, int(number)) if server and number.isdecimal() else (file, 1)


def newest_of(files: Iterable[str], before: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return server → number of its newest file among `files` and those in `before`."""
    newest = dict(before or {})
    for server, number in map(writer_of, files):
        newest[server] = max(number, newest.get(server, 0))
    return newest


def read_files(
    artifacts: Artifacts, model: str, day: date, files: Sequence[str]
) -> tuple[pl.DataFrame, dict[str, str]]:
    """Return the rows of some files of a day in order of arrival, without damaged files, and file → sentence of these.

    A file is damaged if its bytes are no log. Raises `ArtifactsError` if the storage does not answer, or a file cannot
    be read this time: too many open files, say, are no damage.
    """
    name = day_folder(model, day)
    folder = artifacts.pull(name, files) if files else Path()
    parts = [pl.DataFrame(schema=SCHEMA)]
    faults: dict[str, str] = {}
    for file in files:
        address = f"{artifacts.address(name)}/{file}"
        try:
            content = (folder / file).read_bytes()
        except OSError as error:
            raise ArtifactsUnavailable(f"{address} could not be read: {error}") from error
        try:
            part = pl.read_parquet(io.BytesIO(content))
            fault = "" if dict(part.schema) == SCHEMA else "it has other columns"
        except (pl.exceptions.PolarsError, OSError) as error:
            part, fault = parts[0], str(error)
        if fault:
            faults[file] = f"{address} is no log of requests ({fault}): restore it, or remove it"
        else:
            parts.append(part)
    return pl.concat(parts).sort("at", "request_id", "place", "role"), faults


class RequestLog:
    """Log of one server. Use it as a context: its thread writes while the block runs, and the rest at its end."""

    def __init__(
        self,
        artifacts: Artifacts,
        *,
        share: float = 1.0,
        max_bytes: int = 64 * 2**20,
        chunk_rows: int = 20_000,
        chunk_seconds: float = 30.0,
    ) -> None:
        """Log this `share` of requests. Write them each `chunk_seconds`, or when `chunk_rows` wait.

        `max_bytes` bounds the memory of rows that are not written yet; further rows are dropped.
        """
        self._artifacts = artifacts
        self._share = share
        self._max_bytes = max_bytes
        self._chunk_rows = chunk_rows
        self._chunk_seconds = chunk_seconds
        self._server = uuid.uuid4().hex[:8]
        self._files = 0
        self._change = threading.Condition()
        self._new: list[LoggedRow] = []
        self._bytes = 0
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="request-log", daemon=True)
        self.dropped = 0
        """Rows that found no room, or that no file can hold."""
        self.written = 0
        """Rows that are in the artifacts."""
        self.problem = ""
        """Reason why the newest rows could not be written; empty if they were."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join()

    def wants(self, request_id: str) -> bool:
        """Return True if the request is among the logged share.

        Depends on the id alone, so all rows of a request are logged, or none.
        """
        if self._share >= 1.0:
            return True
        first = hashlib.blake2b(request_id.encode(), digest_size=4).digest()
        return int.from_bytes(first) < self._share * 2**32

    def add(self, rows: Iterable[LoggedRow]) -> None:
        """Keep rows until they are written, or drop and count them. Never waits for the storage."""
        sizes = [(row, _bytes_of(row)) for row in rows]  # makes their JSON, so not under the lock
        with self._change:
            for row, size in sizes:
                if self._bytes + size > self._max_bytes:
                    self.dropped += 1
                    continue
                self._new.append(row)
                self._bytes += size
            if len(self._new) >= self._chunk_rows:
                self._change.notify()

    def _work(self) -> None:
        waiting: list[LoggedRow] = []
        is_last = False
        while not is_last:
            with self._change:
                self._change.wait_for(
                    lambda: self._closing or len(self._new) >= self._chunk_rows, self._chunk_seconds
                )
                is_last = self._closing
                waiting += self._new
                self._new = []
            waiting = self._write(waiting)
        if waiting:
            _LOGGER.error("%d rows of the request log are lost: %s", len(waiting), self.problem)

    def _write(self, rows: Sequence[LoggedRow]) -> list[LoggedRow]:
        """Write rows as a file for each model and day. Return those that wait for the store to come back.

        Any other error could come again with the same rows, so they are dropped.
        """
        chunks: dict[tuple[str, date], list[LoggedRow]] = {}
        for row in rows:
            chunks.setdefault((row.model, datetime.fromtimestamp(row.at_us / 1e6, UTC).date()), []).append(
                row
            )
        left: list[LoggedRow] = []
        problem = ""
        for (model, day), chunk in chunks.items():
            try:
                self._write_file(day_folder(model, day), chunk)
            except (ArtifactsError, OSError) as error:
                problem = str(error)
                left += chunk
                _LOGGER.warning("%d rows of the request log wait in memory: %s", len(left), error)
                continue
            except Exception as error:  # the thread must live
                problem = f"{len(chunk)} rows were dropped: {type(error).__name__}: {error}"
                _LOGGER.exception("%d rows of the request log are lost", len(chunk))
                written, dropped = 0, len(chunk)
            else:
                written, dropped = len(chunk), 0
            freed = sum(_bytes_of(row) for row in chunk)
            with self._change:
                self.written += written
                self.dropped += dropped
                self._bytes -= freed
        self.problem = problem
        return left

    def _write_file(self, folder: str, rows: Sequence[LoggedRow]) -> None:
        columns: dict[str, list[object]] = {
            name: [getattr(row, name) for row in rows] for name in _AS_THEY_ARE
        }
        columns["at"] = [row.at_us for row in rows]
        columns["share"] = [self._share] * len(rows)
        columns["row"] = [row.row.decode() for row in rows]
        frame = pl.DataFrame(
            {
                name: pl.Series(columns[name], dtype=pl.Int64() if name == "at" else SCHEMA[name])
                for name in SCHEMA
            }
        )
        content = io.BytesIO()
        frame.cast({"at": SCHEMA["at"]}).write_parquet(content)
        self._files += 1
        with self._artifacts.create(folder, f"{self._server}-{self._files:06d}.parquet") as file:
            file.write(content.getvalue())


def _bytes_of(row: LoggedRow) -> int:
    return (
        _ROW_BYTES
        + len(row.row)
        + getsizeof(row.entity)
        + getsizeof(row.error)
        + 8 * len(row.prediction or ())
    )
