"""Predictions that a server answered with, from the log of requests, for the partition in which the requests arrived.

A row of the feature table counts once for each version, with its first answer. A server may log a share of the
requests; a row then stands for 1 / share rows, also among rows of servers with another share.

An answered request finds its label by the text of its primary key. This join is only here, also for the watch of a
canary and for skew. A text stays as it is: only a column of dates or times says that a text is a time (`time_text`).
Not here: writing, reading and deleting the log (`serving`), the figures (`performance`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, cast
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import orjson
import polars as pl

from ml_assets.data.tables.reader import TableReader
from ml_assets.foundation.objective_facts import facts_of
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.use.live.scored_rows import (
    Profiles,
    Role,
    ScoredVersion,
    columns_of_truth,
    counting_rows,
    nothing_labelled,
)
from ml_assets.use.serving.log_retention import DayRead, FilesRead, log_marks, mark_read
from ml_assets.use.serving.request_log import files_after, read_files
from resources.artifacts import Artifacts
from resources.platform import Platform
from resources.words import counted

if TYPE_CHECKING:
    from ml_assets.model.release.bundle_store import BundleStore

_MIDNIGHT = "T00:00:00+00:00"


def key_text(value: object) -> str | None:
    """Return the text of a value; None for null.

    A number that is whole has no point. A moment is in UTC, ISO 8601, and the midnight that begins a day is the date of
    that day.
    """
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case float() if value.is_integer():
            return str(int(value))
        case datetime():
            moment = (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
            return moment.removesuffix(_MIDNIGHT)
        case date():
            return value.isoformat()
        case str():
            return value
        case _:
            return str(value)


def time_text(sent: str | None) -> str | None:
    """Return the `key_text` of the date or time that a request sent as text; the text itself if it is not a time.

    `2013-12-03`, `2013-12-03T00:00:00` and `2013-12-03T00:00:00Z` are one value of a column of dates or times.
    """
    if sent is None:
        return None
    try:
        return key_text(datetime.fromisoformat(sent))
    except (ValueError, OverflowError):  # years 1 and 9999 have no UTC in every zone
        return sent


PLACE = "place of the key"
"""Column of the result, beside those of the feature table."""


def key_in(row: str | None, key: Sequence[str]) -> tuple[str | None, ...] | str:
    """Return the text of each column of `key` in a logged raw row, or the reason why it has no key."""
    try:
        found = orjson.loads(row or "")
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        return "are no JSON object"
    values = cast("dict[str, object]", found)
    if absent := [name for name in key if name not in values]:
        return f"do not name {', '.join(absent)}, a part of the primary key of the feature table"
    return tuple(key_text(values[name]) for name in key)


def rows_of_keys(
    keys: Sequence[tuple[str | None, ...]],
    spec: PipelineSpec,
    reader: TableReader,
    columns: Iterable[str],
    *,
    counts: pl.Expr | None = None,
) -> pl.DataFrame:
    """Return the rows of the feature table with one of `keys`, by partition date and then by place.

    They have `PLACE`, the index into `keys`, the partition date, and `columns`. A key is the text of each column of the
    primary key, as sent: only in a column of dates or times, different texts can be one value. If several rows have the
    same key, the first one counts. `counts` is a condition on rows; None: all rows count.
    """
    features = spec.features
    key, day = list(features.primary_key), features.partition_date
    wanted = list(dict.fromkeys((day, *columns)))
    partitions = reader.keys(features.table)
    if not keys or not partitions:
        return pl.DataFrame({PLACE: []}, schema={PLACE: pl.Int64()})
    named = {f"text of {name}": name for name in key}  # the table has columns of these names
    table = reader.scan(features.table, partitions).filter(True if counts is None else counts)
    dtypes = table.collect_schema()
    asked = pl.DataFrame(
        {
            PLACE: range(len(keys)),
            **{
                column: [
                    time_text(one[n]) if isinstance(dtypes[name], pl.Date | pl.Datetime) else one[n]
                    for one in keys
                ]
                for n, (column, name) in enumerate(named.items())
            },
        },
        schema={PLACE: pl.Int64(), **dict.fromkeys(named, pl.String())},
    )
    if day in key:
        days = asked[f"text of {day}"].unique().to_list()
        table = table.filter(pl.col(day).cast(pl.String).is_in(days))
    found = table.select(*dict.fromkeys((*key, *wanted))).collect()
    known = found.select(
        *wanted,
        *(
            pl.Series(column, [key_text(value) for value in found[name]], dtype=pl.String)
            for column, name in named.items()
        ),
    )
    return (
        asked.join(known.unique(list(named), keep="first"), on=list(named), how="inner")
        .sort(day, PLACE, maintain_order=True)
        .select(PLACE, *wanted)
    )


LATEST_WRITE = timedelta(minutes=5)
"""Time after the end of a partition until servers have written its requests, if the store is not away."""
FILES = 32
"""Files of the log that are in memory at once."""
_ROLES: tuple[Role, ...] = ("production", "canary")
_COLUMNS = {
    "at": pl.Datetime("us", "UTC"),
    "version": pl.Int64(),
    "bundle_digest": pl.String(),
    "role": pl.String(),
    "request_id": pl.String(),
    "prediction": pl.List(pl.Float64()),
    "times": pl.Float64(),
    "key": pl.String(),
    "no_key": pl.String(),
}


@dataclass(frozen=True, kw_only=True)
class LoggedDay:
    """Answers of a partition, as the log has them now."""

    rows: pl.DataFrame
    """Columns of `_COLUMNS`, in order of arrival. `key` is JSON; null if the row has none, and `no_key` says why."""
    is_over: bool
    """True if no further request can arrive in the partition."""
    files: FilesRead
    """Files that were read."""
    faults: tuple[str, ...]
    """Damaged files, each with its fault."""
    deleted: int
    """Files that an earlier measurement read, and that are gone."""
    refused: int
    """Rows that a version could not predict."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about rows that are not measured."""
        found = [f"a damaged file of the log is left out: {fault}" for fault in self.faults]
        if self.rows.is_empty():
            found.append("the log of requests has no answer of this partition")
        if self.refused:
            found.append(f"{self.refused:,} rows of requests got no prediction of their own version")
        if self.deleted:
            found.append(f"{counted(self.deleted, 'file')} of the log were deleted before this measurement")
        if not self.is_over:
            found.append("the partition is not over: measure it again afterwards")
        return tuple(found)


def logged_day(spec: PipelineSpec, artifacts: Artifacts, key: str) -> LoggedDay:
    """Read the answers that arrived in partition `key`. Raises `ArtifactsError`."""
    before = log_marks(artifacts, spec.name, key)
    parts: list[pl.DataFrame] = [pl.DataFrame(schema=_COLUMNS)]
    files: FilesRead = {}
    faults: list[str] = []
    deleted = refused = 0
    is_over = has_ended(spec, key, datetime.now(UTC))
    for day in days_at(spec, key):
        there = files_after(artifacts, spec.name, day, {})
        known = before.get(day.isoformat(), DayRead())
        deleted += max(0, known.count - sum(map(known.has, there)))
        files[day.isoformat()] = DayRead.of(there)
        for log, wrong in rows_in(spec, artifacts, key, day, there):
            faults += wrong.values()
            log = log.filter(pl.col("role").is_in(_ROLES) & (pl.col("role") == pl.col("assigned")))
            refused += log.filter(pl.col("error").is_not_null()).height
            parts.append(_answers(log.filter(pl.col("prediction").is_not_null()), spec.features.primary_key))
    rows = pl.concat(parts).sort("at", "request_id", maintain_order=True)
    return LoggedDay(
        rows=rows, is_over=is_over, files=files, faults=tuple(faults), deleted=deleted, refused=refused
    )


def rows_in(
    spec: PipelineSpec, artifacts: Artifacts, key: str, day: date, files: Sequence[str]
) -> Iterator[tuple[pl.DataFrame, Mapping[str, str]]]:
    """Yield the rows of some files of a day's log that arrived in partition `key`, and damaged file → fault.

    Reads `FILES` at once. Raises `ArtifactsError`.
    """
    begin, end = _bounds(spec, key)
    for start in range(0, len(files), FILES):
        log, wrong = read_files(artifacts, spec.name, day, files[start : start + FILES])
        yield log.filter(pl.col("at").is_between(begin, end, closed="left")), wrong


def has_ended(spec: PipelineSpec, key: str, now: datetime) -> bool:
    """Return True if servers have written all requests that arrived in partition `key`."""
    return now >= ended_at(spec, key)


def ended_at(spec: PipelineSpec, key: str) -> datetime:
    """Return the moment (UTC) from which `has_ended` is true."""
    return _bounds(spec, key)[1] + LATEST_WRITE


def mark_measured(spec: PipelineSpec, artifacts: Artifacts, key: str, logged: LoggedDay) -> None:
    """Let servers delete the files behind stored figures. Until the partition is over, they are needed again.

    Raises `ArtifactsError`.
    """
    if logged.is_over:
        mark_read(artifacts, spec.name, key, logged.files)


def days_at(spec: PipelineSpec, key: str) -> list[date]:
    """Return the days (UTC) of the log with requests that arrived in a partition."""
    begin, end = _bounds(spec, key)
    first, last = begin.date(), (end - timedelta.resolution).date()
    return [first + timedelta(days=n) for n in range((last - first).days + 1)]


def partitions_at(spec: PipelineSpec, day: date) -> list[str]:
    """Return the partitions in which requests of a day (UTC) of the log arrived; none outside those of the model."""
    zone = ZoneInfo(spec.features.time_zone)
    midnight = datetime.combine(day, time(), UTC)
    ends = (midnight, midnight + timedelta(days=1) - timedelta.resolution)
    first, last = (one.astimezone(zone).date() for one in ends)
    return spec.partitions.as_cadence.keys(first, last)


def scored_of_log(
    spec: PipelineSpec,
    reader: TableReader,
    platform: Platform,
    logged: LoggedDay,
    earlier: Mapping[str, Mapping[str, Profiles]],
) -> list[ScoredVersion]:
    """Return the versions that answered requests of a partition, production first, each by its first answer.

    Labels are those that the feature table has by now. `earlier` is bundle → earlier partition → profiles. Raises
    `BundleMissing` and `BundleDamaged`.
    """
    from ml_assets.model.release.releases import bundles_of

    bundles = bundles_of(platform)
    found: list[ScoredVersion] = []
    for role in _ROLES:
        of_role = logged.rows.filter(role=role)
        for (bundle,), rows in of_role.group_by("bundle_digest", maintain_order=True):
            found.append(_version(spec, reader, bundles, role, str(bundle), rows, earlier))
    return found


def _version(
    spec: PipelineSpec,
    reader: TableReader,
    bundles: "BundleStore",
    role: Role,
    bundle: str,
    rows: pl.DataFrame,
    earlier: Mapping[str, Mapping[str, Profiles]],
) -> ScoredVersion:
    left_out = Counter[str](one for one in rows["no_key"] if one is not None)
    keyed = rows.filter(pl.col("key").is_not_null())
    once = keyed.unique("key", keep="first", maintain_order=True)
    if repeated := keyed.height - once.height:
        left_out["repeat a row that was answered before"] = repeated
    classes = bundles.open(bundle).facts.question.classes
    outputs = classes or facts_of(spec.evaluation.objective).columns
    width = len(outputs) or 1
    is_right = pl.col("prediction").list.len() == width
    is_right &= pl.col("prediction").list.eval(pl.element().is_finite()).list.all()
    # Rows without a key have no label. They still are answers, so drift counts them.
    answers = pl.concat([once, rows.filter(pl.col("key").is_null())]).filter(is_right)
    if wrong := once.height + rows.height - keyed.height - answers.height:
        left_out["have another number of predictions than the model's answer, or infinite ones"] = wrong
    once = once.filter(is_right)
    named = [f"_output {n}" for n in range(width)]
    label = spec.features.label
    truth = rows_of_keys(
        [tuple(orjson.loads(one)) for one in once["key"]],
        spec,
        reader,
        (label, *spec.features.primary_key, *columns_of_truth(spec)),
        counts=pl.col(label).is_not_null(),
    )
    asked = once.with_columns(
        pl.Series(PLACE, range(once.height), dtype=pl.Int64),
        *(pl.col("prediction").list.get(n).alias(name) for n, name in enumerate(named)),
        pl.col("times").alias("_times"),
        pl.col("request_id").alias("_request"),
    ).select(PLACE, *named, "_times", "_request")
    if spec.evaluation.group is not None:
        # A list that lacks labels would be easier to order than it was.
        whole = asked.group_by("_request").agg(
            pl.col(PLACE).is_in(truth[PLACE].to_list()).all().alias("_all")
        )
        asked = asked.join(whole.filter("_all"), on="_request", how="semi", maintain_order="left")
    if truth.is_empty():
        labelled = nothing_labelled()
    else:
        both = truth.join(asked.drop("_request"), on=PLACE, how="inner", maintain_order="left").drop(PLACE)
        labelled = counting_rows(spec, both, named, classes, "_times")
    return ScoredVersion(
        role=role,
        version=int(rows["version"][0]),
        bundle_digest=bundle,
        rows=answers.height,
        stands_for=float(answers["times"].sum()),
        profiles=_profiles(answers, outputs, width),
        reference=earlier.get(bundle, {}),
        labelled=labelled,
        classes=classes,
        left_out=dict(left_out),
    )


def _bounds(spec: PipelineSpec, key: str) -> tuple[datetime, datetime]:
    """Return begin and end of a partition in UTC."""
    zone = ZoneInfo(spec.features.time_zone)
    first, last = spec.partitions.as_cadence.bounds(key)
    begin, end = (datetime.combine(day, time(), zone) for day in (first, last + timedelta(days=1)))
    return begin.astimezone(UTC), end.astimezone(UTC)


def _answers(log: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Return the columns of `_COLUMNS` of answered rows. The raw rows, which are large, are not kept."""
    keys = [key_in(row, key) for row in log["row"]]
    return log.with_columns(
        (1 / pl.col("share")).alias("times"),
        pl.Series(
            "key", [None if isinstance(one, str) else orjson.dumps(one).decode() for one in keys], pl.String
        ),
        pl.Series("no_key", [one if isinstance(one, str) else None for one in keys], pl.String),
    ).select(*_COLUMNS)


def _profiles(answers: pl.DataFrame, outputs: Sequence[str], width: int) -> Profiles:
    """Return profiles of answers, one for each number of rows that an answer stands for.

    Their counts sum to Kish's effective number of rows, (Σt)² / Σt² (Survey Sampling, 1965), because `drift` takes them
    for independent rows: rows that stand for different numbers of rows say less than as many equal ones.
    """
    # Brings onnxruntime, and definitions load this module.
    from ml_assets.model.steps.scoring import prediction_profile

    def matrix(rows: pl.DataFrame) -> npt.NDArray[np.float64]:
        return np.array(rows["prediction"].to_list(), dtype=np.float64).reshape(rows.height, width)

    times = answers["times"]
    effective = float(times.sum()) / float((times**2).sum()) if answers.height else 0.0
    return tuple(
        _scaled(prediction_profile(matrix(part), outputs), float(part["times"][0]) * effective)
        for _, part in answers.group_by("times", maintain_order=True)
    )


def _scaled(profile: dict[str, Any], factor: float) -> dict[str, Any]:
    """Return a profile of numbers with all counts times `factor`."""
    if math.isclose(factor, 1.0):
        return profile
    columns: dict[str, dict[str, Any]] = {}
    for name, column in profile["columns"].items():
        columns[name] = column | {"nulls": column["nulls"] * factor}
        if "values" in column:
            columns[name]["values"] = [[value, count * factor] for value, count in column["values"]]
        if "counts" in column:
            columns[name]["counts"] = [count * factor for count in column["counts"]]
    return {"rows": profile["rows"] * factor, "columns": columns}
