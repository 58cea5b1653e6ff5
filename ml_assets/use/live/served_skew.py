"""Served rows against the feature table, after the training transform: where both differ, the model saw another input.

Requests of a partition are joined with the rows of the feature table by their primary key. Both sides go through the
`FittedState` of the version that answered, the transform of its training, and are compared bit by bit. `ServedSkewRule`
decides what breaks the policy, for the check and for `ml-assets skew`. The verdict of a partition is in the ledger,
because the log of requests behind it is deleted some day. It names the log's files and the features that were compared,
so what came later is compared again. Not here: predictions and labels (`performance`), distributions
(`ml_assets.data.validation.drift`), the check (`checks.skew`).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
import orjson
import polars as pl
from numpy.typing import NDArray
from pydantic import Field

from ml_assets.data.features.categories import NotACategory, category_text
from ml_assets.data.features.encoding import FittedState
from ml_assets.data.tables.layout import MAIN
from ml_assets.data.tables.publish.audit import new_row_of, verdict_of
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.validation.column_types import polars_type
from ml_assets.data.validation.verdict import Finding, Verdict
from ml_assets.foundation.sections import Section
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.use.live.logged_rows import (
    PLACE,
    days_at,
    ended_at,
    has_ended,
    key_in,
    partitions_at,
    rows_in,
    rows_of_keys,
)
from ml_assets.use.serving.request_log import days_of, files_after
from resources.artifacts import Artifacts
from resources.platform import Platform
from resources.words import counted

if TYPE_CHECKING:
    from ml_assets.model.release.bundle_store import BundleFacts

RULE = "served_skew"
"""Rule of the findings."""

Share = Annotated[float, Field(ge=0, lt=1)]


class ServedSkewRule(Section):
    """Comparison of each partition's requests with the feature table, bit by bit after the training's transform."""

    at_most: Share = 0.0
    """Largest share of the compared rows in which an input may differ. By default, none may."""
    columns: dict[str, Share] = Field(default_factory=dict[str, float], examples=[{"price": 0.01}])
    """The same for single inputs."""
    ignore: tuple[str, ...] = Field(default=(), examples=[["season"]])
    """Inputs that may differ in any row."""
    severity: Literal["warn", "error"] = "warn"
    """Colour of the check: `warn` is yellow, `error` red. Neither stops anything."""

    def allows(self, column: "ColumnSkew", rows: int) -> bool:
        """Return True if `column` may differ in its rows, of `rows` compared ones."""
        return column.name in self.ignore or column.rows <= self._limit_of(column.name) * rows

    def findings(self, found: "Sequence[VersionSkew]", table: str) -> list[Finding]:
        """Return a finding for each input that differs in too many rows, and one if no row could be compared.

        Without values of rows, because verdicts are kept and values may be sensitive.
        """
        severity = "block" if self.severity == "error" else "warn"
        broken = [
            Finding(
                rule=RULE,
                column=column.name,
                severity=severity,
                measured=f"version {one.version}: {column.rows:,} of {counted(one.rows, 'row')}",
                limit=f"at most {self._limit_of(column.name):.3g} of the rows",
                failing_rows=column.rows,
                explanation=f"Requests held other values of {column.name} than {table}, so the version read another "
                "input than in training. `ml-assets skew` prints a row. Correct the client, or the feature function.",
            )
            for one in found
            for column in one.columns
            if not self.allows(column, one.rows)
        ]
        unknown = sum(count for one in found for count in one.left_out.values())
        if not broken and unknown and not any(one.rows for one in found):
            why = "; ".join(f"{count:,} {why}" for one in found for why, count in one.left_out.items())
            return [
                Finding(
                    rule=RULE,
                    severity=severity,
                    measured=f"none of {counted(unknown, 'row')}: {why}",
                    limit="rows to compare",
                    failing_rows=unknown,
                    explanation=f"No request has a row in {table}, so nothing says that both agree. Send the primary "
                    "key with each request.",
                )
            ]
        return broken

    def _limit_of(self, column: str) -> float:
        return self.columns.get(column, self.at_most)


Encoded = tuple[NDArray[np.float32], NDArray[np.int32]]
"""Rows as `FittedState.encode` returns them: numbers `[rows, F]` and ids of categories `[rows, C]`."""


@dataclass(frozen=True, kw_only=True)
class ColumnSkew:
    """One input of the model in which served rows differ from the table."""

    name: str
    rows: int
    """Rows that differ."""
    key: str
    """Primary key of the first of them, as JSON."""
    served: Any
    """Its value in the request."""
    stored: Any
    """Its value in the table."""


@dataclass(frozen=True, kw_only=True)
class VersionSkew:
    """Rows that one version answered."""

    version: int
    bundle_digest: str
    rows: int
    """Served rows that were compared. A row that was asked several times counts each time."""
    columns: tuple[ColumnSkew, ...]
    """Inputs that differ in at least one row, most rows first."""
    rounded: tuple[str, ...]
    """Inputs that differ, but not as values of the table's type: JSON has 0.487, float32 0.48699999."""
    left_out: Mapping[str, int]
    """Reason → served rows that could not be compared."""
    not_compared: tuple[str, ...]
    """Inputs that cannot be compared: blobs."""


def served_skew(spec: PipelineSpec, reader: TableReader, platform: Platform, key: str) -> list[VersionSkew]:
    """Compare the requests that arrived in partition `key`, by version; empty without any.

    Raises `ArtifactsError`, `BundleMissing` and `BundleDamaged`.
    """
    from ml_assets.model.release.releases import bundles_of

    bundles = bundles_of(platform)
    found: list[VersionSkew] = []
    logged = pl.concat(
        [pl.DataFrame(schema=_COLUMNS), *_answered(spec, platform.artifacts, key)], how="vertical"
    )
    for _, rows in logged.group_by("bundle_digest", maintain_order=True):
        digest = str(rows["bundle_digest"][0])
        found.append(_compared(spec, reader, bundles.open(digest).facts, rows))
    return found


_COLUMNS = {"version": pl.Int64(), "bundle_digest": pl.String(), "row": pl.String()}


def _answered(spec: PipelineSpec, artifacts: Artifacts, key: str) -> Iterator[pl.DataFrame]:
    for day in days_at(spec, key):
        for log, _ in rows_in(spec, artifacts, key, day, files_after(artifacts, spec.name, day, {})):
            yield log.filter(pl.col("prediction").is_not_null()).select(*_COLUMNS)


def _compared(
    spec: PipelineSpec, reader: TableReader, facts: "BundleFacts", logged: pl.DataFrame
) -> VersionSkew:
    left_out = Counter[str]()
    rows: list[Mapping[str, Any]] = []
    keys: list[tuple[str | None, ...]] = []
    for text in logged["row"]:
        key = key_in(text, spec.features.primary_key)
        if isinstance(key, str):
            left_out[key] += 1
        else:
            keys.append(key)
            rows.append(orjson.loads(text))
    fitted = facts.fitted
    names = [one.name for one in (*fitted.numeric, *fitted.categorical)]
    table = rows_of_keys(keys, spec, reader, names)
    if missing := len(keys) - table.height:
        left_out["name a key that the feature table does not have"] = missing
    columns: list[ColumnSkew] = []
    rounded: list[str] = []
    if table.height:
        places: list[int] = table[PLACE].to_list()
        asked = [rows[place] for place in places]
        served = _served(facts, asked)
        stored = fitted.encode(table)
        differing = _differing(fitted, fitted.encode(_in_types_of(table, served)), stored)
        in_some_bit = _differing(fitted, fitted.encode(served), stored)
        for name in names:
            if in_some_bit[name].size and not differing[name].size:
                rounded.append(name)
            if differing[name].size:
                first = int(differing[name][0])
                columns.append(
                    ColumnSkew(
                        name=name,
                        rows=len(differing[name]),
                        key=orjson.dumps(keys[places[first]]).decode(),
                        served=asked[first].get(name),
                        stored=table[name][first],
                    )
                )
    return VersionSkew(
        version=int(logged["version"][0]),
        bundle_digest=str(logged["bundle_digest"][0]),
        rows=table.height,
        columns=tuple(sorted(columns, key=lambda one: -one.rows)),
        rounded=tuple(rounded),
        left_out=dict(left_out),
        not_compared=tuple(one.name for one in facts.inputs if one.kind == "blob"),
    )


def _served(facts: "BundleFacts", rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return the model's columns of raw rows of JSON, read as the server reads them."""
    columns: list[pl.Series] = []
    for column in facts.inputs:
        values = [row.get(column.name) for row in rows]
        if column.kind == "numeric":
            numbers = [None if one is None else float(one) for one in values]
            columns.append(pl.Series(column.name, numbers, dtype=pl.Float64))
        elif column.kind == "category":
            texts = [_text(one, polars_type(column.dtype)) for one in values]
            columns.append(pl.Series(column.name, texts, dtype=pl.String))
    return pl.DataFrame(columns)


def _in_types_of(table: pl.DataFrame, served: pl.DataFrame) -> pl.DataFrame:
    """Return served numbers rounded to float32 where the table has float32."""
    narrow = [name for name in served.columns if table.schema[name] == pl.Float32]
    return served.with_columns(pl.col(narrow).cast(pl.Float32)) if narrow else served


def _text(value: Any, dtype: pl.DataType) -> str | None:
    try:
        return category_text(value, dtype)
    except NotACategory:
        return None


def _differing(fitted: FittedState, served: Encoded, stored: Encoded) -> dict[str, NDArray[np.intp]]:
    """Return column → positions of the rows whose encoded values differ in any bit."""
    (numbers, ids), (numbers_stored, ids_stored) = served, stored
    unlike = numbers.view(np.uint32) != numbers_stored.view(np.uint32)
    unlike &= ~(np.isnan(numbers) & np.isnan(numbers_stored))
    by_column = {one.name: unlike[:, place] for place, one in enumerate(fitted.numeric)}
    by_column |= {
        one.name: ids[:, place] != ids_stored[:, place] for place, one in enumerate(fitted.categorical)
    }
    return {name: np.flatnonzero(column) for name, column in by_column.items()}


NEWEST = 14
"""Newest partitions with requests that are compared. After a longer pause, earlier ones are not."""


@dataclass(frozen=True, kw_only=True)
class Due:
    """Partition whose requests have to be compared."""

    key: str
    content_digest: str
    """Digest of the log's files and of the features."""


def verdicts_of(model: str) -> str:
    """Return the name under which the ledger holds the verdicts of a model."""
    return f"{model}/served_skew"


@dataclass(frozen=True, kw_only=True)
class LoggedFiles:
    """Files of the log of requests, with which the answer of `due_partitions` changes."""

    days: tuple[date, ...]
    """Days (UTC) that have files."""
    names: tuple[str, ...]
    """Day, name and size in bytes of each file. A file does not change once it is whole."""

    @classmethod
    def of(cls, spec: PipelineSpec, platform: Platform) -> Self:
        """Return the files of a model. Raises `ArtifactsError`."""
        files = days_of(platform.artifacts, spec.name)
        names = (f"{day} {name} {size}" for day, some in files.items() for name, size in some.items())
        return cls(days=tuple(files), names=tuple(sorted(names)))

    def next_end(self, spec: PipelineSpec, now: datetime) -> datetime | None:
        """Return the first moment (UTC) after `now` at which one of their partitions has ended; None if all have."""
        ends = (ended_at(spec, key) for day in self.days for key in partitions_at(spec, day))
        return min((one for one in ends if one > now), default=None)


def due_partitions(
    spec: PipelineSpec, rule: ServedSkewRule, reader: TableReader, platform: Platform, now: datetime
) -> list[Due]:
    """Return the partitions that ended with requests, have features, and no verdict on both; oldest first.

    Keys of requests may name rows of the next partition, so a partition is due again when that one appears. Raises
    `ArtifactsError`, `LakeError` and `LedgerError`.
    """
    files = days_of(platform.artifacts, spec.name)
    asked = {key for day in files for key in partitions_at(spec, day)}
    features = reader.digests(spec.features.table)
    keys = sorted(key for key in asked if key in features and has_ended(spec, key, now))[-NEWEST:]
    newest = platform.ledger.newest_verdicts(verdicts_of(spec.name), keys)
    rules, due = _digest(rule.model_dump(mode="json")), list[Due]()
    for key in keys:
        logged = {str(day): files.get(day, {}) for day in days_at(spec, key)}
        following = min((one for one in features if one > key), default="")
        content = _digest([logged, features[key], features.get(following)])
        known = newest.get(key)
        if known is None or (known.content_digest, known.contract_digest) != (content, rules):
            due.append(Due(key=key, content_digest=content))
    return due


def compare(
    spec: PipelineSpec, rule: ServedSkewRule, reader: TableReader, platform: Platform, due: Due, run_id: str
) -> Verdict:
    """Compare the requests of a partition, and record the verdict.

    Raises `ArtifactsError`, `BundleMissing`, `BundleDamaged` and `LedgerError`.
    """
    found = served_skew(spec, reader, platform, due.key)
    verdict = Verdict.of(
        verdicts_of(spec.name),
        due.key,
        rule.findings(found, spec.features.table),
        rows=sum(one.rows for one in found),
        content_digest=due.content_digest,
        contract_digest=_digest(rule.model_dump(mode="json")),
    )
    platform.ledger.record_verdicts([new_row_of(verdict, run_id, MAIN)])
    return verdict


def newest_verdicts(model: str, platform: Platform) -> Sequence[Verdict]:
    """Return the newest verdict of each of the newest partitions, oldest first. Raises `LedgerError`."""
    rows = platform.ledger.newest_verdicts(verdicts_of(model))
    return [verdict_of(rows[key]) for key in sorted(rows)[-NEWEST:]]


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
