"""Rows that champion and canary answered since the canary began: from the log of requests, with labels of the table.

Here: the choice and the order of the rows. Not here: the comparison (`comparison`), the log (`serving.request_log`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import cast

import numpy as np
import orjson
import polars as pl

from ml_assets.live.comparison import Labelled, Requests
from ml_assets.pipeline.spec import PipelineSpec
from ml_assets.serving.request_log import read_intact_requests
from ml_assets.tables.reader import TableReader
from resources.artifacts import Artifacts
from resources.ledger import Promotion

_ROLES = ("production", "canary")


@dataclass(frozen=True, kw_only=True)
class FoundLabels:
    """Answered rows with their labels, and what is missing."""

    rows: Labelled | None
    """None without a row whose label is known."""
    missing: tuple[str, ...] = ()
    """Reasons why rows are left out."""


def answered_since(
    artifacts: Artifacts, model: str, champion: Promotion, canary: Promotion, now: datetime | None = None
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the logged rows of both bundles since the canary's promotion, in order of arrival, and faults of files.

    If the canary failed and the champion answered in its place, the row counts for the canary alone. The columns
    are those of the log. Raises `ArtifactsError`.
    """
    begin, end = max(champion.at, canary.at), now or datetime.now(UTC)
    days = [begin.date() + timedelta(n) for n in range((end.date() - begin.date()).days + 1)]
    parts, faults = zip(*(read_intact_requests(artifacts, model, day) for day in days), strict=True)
    digests = {"production": champion.bundle_digest, "canary": canary.bundle_digest}
    rows = pl.concat(parts).filter(
        (pl.col("at") >= begin)
        & pl.col("role").is_in(_ROLES)
        & (pl.col("bundle_digest") == pl.col("role").replace(digests))
    )
    failed = rows.filter((pl.col("role") == "canary") & pl.col("error").is_not_null())
    of_champion = rows.filter(role="production").join(
        failed, on=["request_id", "place"], how="anti", maintain_order="left"
    )
    kept = pl.concat([of_champion, rows.filter(role="canary")]).sort("at", "request_id", "place", "role")
    return kept, tuple(chain.from_iterable(faults))


def requests_of(answered: pl.DataFrame) -> Requests:
    """Return the requests behind logged rows; a request whose rows went to both versions counts for each.

    A request failed if its first row did: a version with more rows of a list has more chances of a wrong one.
    """
    found = (
        answered.group_by("request_id", "role", maintain_order=True)
        .agg(
            pl.col("at").first(),
            pl.col("latency_us").max(),
            pl.col("error").is_not_null().sort_by("place").first(),
        )
        .sort("at", maintain_order=True)
    )
    return Requests(
        is_canary=(found["role"] == "canary").to_numpy(),
        failed=found["error"].to_numpy(),
        latency_ms=found["latency_us"].to_numpy() / 1000,
    )


def labelled_of(
    answered: pl.DataFrame, spec: PipelineSpec, reader: TableReader, classes: Sequence[str]
) -> FoundLabels:
    """Return answered rows with the label that the feature table has for them by now.

    Rows are found by the table's primary key among their raw values; of several answers of a version to the same row,
    the first counts. They are ordered by partition, then by arrival, so alpha holds if labels come in the order of
    partitions. `classes` are those of the label, empty for numbers.
    """
    features = spec.features
    answered = answered.filter(pl.col("error").is_null())
    length = pl.col("prediction").list.len()
    rows = answered.filter(length == len(classes) if classes else length > 0)
    parsed = [_object(row) for row in rows["row"]]
    raw = [row for row in parsed if row is not None]
    left_out = (
        (
            len(answered) - len(rows),
            "answered rows have another number of predictions than the model's answer",
        ),
        (len(rows) - len(raw), "logged rows are no JSON object"),
    )
    missing = tuple(f"{count} {what}: they are left out" for count, what in left_out if count)
    rows = rows.filter(pl.Series([row is not None for row in parsed], dtype=pl.Boolean))
    keys = reader.keys(features.table)
    if rows.is_empty() or not keys:
        lacking = "no answered rows" if rows.is_empty() else f"no partition of {features.table}"
        return FoundLabels(rows=None, missing=(*missing, f"there are {lacking}"))
    key = list(features.primary_key)
    absent = [column for column in key if not any(column in row for row in raw)]
    if absent:
        return FoundLabels(
            rows=None,
            missing=(
                *missing,
                f"requests do not name {', '.join(absent)}, a part of the primary key of {features.table}",
            ),
        )
    named = {f"key {name}": name for name in key}  # the log has columns of its own, such as `at`
    asked = rows.select("role", "at", "prediction").with_columns(
        pl.Series(column, [_text(row.get(name)) for row in raw], dtype=pl.String)
        for column, name in named.items()
    )
    day = features.partition_date
    table = reader.scan(features.table, keys).filter(pl.col(features.label).is_not_null())
    if day in key:
        table = table.filter(pl.col(day).cast(pl.String).is_in(asked[f"key {day}"].unique().to_list()))
    found = table.select(*dict.fromkeys((*key, day, features.label))).collect()
    known = found.select(
        pl.col(features.label).alias("label"),
        pl.col(day).alias("day"),
        *(
            pl.Series(column, [_text(value) for value in found[name]], dtype=pl.String)
            for column, name in named.items()
        ),
    )
    joined = (
        asked.join(known, on=list(named), how="inner")
        .unique(subset=["role", *named], keep="first", maintain_order=True)
        .sort("day", "at", maintain_order=True)
    )
    lacking = asked.n_unique(subset=["role", *named]) - len(joined)
    if lacking:
        missing = (*missing, f"{lacking} answered rows have no label in {features.table} yet")
    if joined.is_empty():
        return FoundLabels(rows=None, missing=missing)
    prediction = np.array(joined["prediction"].to_list(), dtype=float)
    labels = joined["label"]
    place = {name: index for index, name in enumerate(classes)}
    numbers = [place.get(str(one), -1) for one in labels] if classes else labels.cast(pl.Float64).to_list()
    return FoundLabels(
        rows=Labelled(
            is_canary=(joined["role"] == "canary").to_numpy(),
            prediction=prediction if classes else prediction[:, 0],
            label=np.array(numbers, dtype=float),
        ),
        missing=missing,
    )


def _object(row: str | None) -> dict[str, object] | None:
    """Return a logged raw row; None if it is no JSON object."""
    try:
        found = orjson.loads(row or "")
    except orjson.JSONDecodeError:
        return None
    return cast("dict[str, object]", found) if isinstance(found, dict) else None


def _text(value: object) -> str | None:
    """Return a value of a primary key as text, the same for a table's value and for its JSON."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case float() if value.is_integer():
            return str(int(value))
        case datetime():
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
        case str():
            return _moment(value) or value
        case _:
            return str(value)


def _moment(text: str) -> str | None:
    """Return a time in JSON as the text of that time in UTC; None if `text` is not a time."""
    if len(text) <= len("2026-11-23") or "-" not in text:
        return None
    try:
        return _text(datetime.fromisoformat(text))
    except (ValueError, OverflowError):  # years 1 and 9999 have no UTC in every zone
        return None
