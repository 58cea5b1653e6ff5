"""Columns that a request leaves out, taken from the online store: the newest feature row of the entity that it names.

A column that the request holds is never replaced. Here: which columns are looked up, and what is refused if they cannot
be. Not here: the store (`resources.online`), the content of its rows (`ml_assets.data.tables.online`).
"""

import base64
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isnan
from typing import Any

from ml_assets.data.tables.online import OnlineEntityRefused, OnlineRowsDiffer, OnlineTable
from ml_assets.use.serving.raw_rows import RawRow, RequestRefused, parse
from ml_assets.use.serving.watch import Roles, ServedVersion
from resources.online import OnlineRow, OnlineStore, OnlineStoreError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUp:
    """Part of a row that came from the online store."""

    columns: tuple[str, ...]
    """Columns that the request left out, in the order of the feature table."""
    features_at: datetime
    """Moment of the prediction for which the stored row was made (UTC)."""
    known_at: datetime
    """Time of the commit of main from which the stored row came (UTC)."""

    def as_json(self) -> dict[str, Any]:
        """Return the entry `online` of an answer."""
        ages = {"features_at": self.features_at, "known_at": self.known_at}
        said = {name: one.isoformat().replace("+00:00", "Z") for name, one in ages.items()}
        return {**said, "columns": list(self.columns)}


@dataclass(frozen=True, kw_only=True)
class OnlineLookup:
    """Online rows of the feature table of one model."""

    table: OnlineTable
    store: OnlineStore
    primary_key: Sequence[str]
    """Columns that name a row of the feature table. They are looked up, too, so that the log can be joined with it."""

    def is_asked(self, served: Roles, body: bytes) -> bool:
        """Return True if a row of `body` leaves out a column. Then an answer waits for the store."""
        try:
            content = parse(body, sys.maxsize)
        except RequestRefused:
            return False
        wanted = _wanted(served)
        return any(not wanted <= row.keys() for row in (content if isinstance(content, list) else [content]))

    def complete(
        self, served: Roles, rows: Sequence[RawRow], *, is_list: bool
    ) -> tuple[list[RawRow], list[LookedUp | None]]:
        """Return `rows` with the columns that they leave out, and what was looked up for each.

        One read for all rows. Raises `RequestRefused`: 422 if a row leaves out a column of the version in production,
        and names no entity or one without a row that may be used; 503 if the store does not answer. Rows that lack only
        columns of a canary or a shadow stay as they are then.
        """
        wanted = _wanted(served)
        needed = _inputs(served.production) | _entity_of_canary(served)
        entities: dict[int, str] = {}
        lacking: dict[int, str] = {}
        for place, row in enumerate(rows):
            if wanted <= row.keys():
                continue
            if missing := [name for name in needed if name not in row]:
                lacking[place] = next((one for one, _ in self.table.columns if one in missing), missing[0])
            try:
                entities[place] = self._entity(row, lacking.get(place), place if is_list else None)
            except RequestRefused:
                if place in lacking:
                    raise
        found = self._read(entities, lacking)
        completed = list(rows)
        done: list[LookedUp | None] = [None] * len(rows)
        for place, stored in found.items():
            try:
                if stored is None:
                    raise self._absent(rows[place], lacking.get(place), place if is_list else None)
                completed[place], done[place] = self._filled(rows[place], stored, wanted)
            except RequestRefused:
                if place in lacking:
                    raise
        return completed, done

    def _entity(self, row: RawRow, column: str | None, place: int | None) -> str:
        for name in self.table.entity:
            if row.get(name) is None:
                also = "" if column in (None, name) else f"{column!r} is missing, and "
                raise RequestRefused(
                    422,
                    f"column {also}{name!r} is missing or null, which names the entity in the online store: send all "
                    f"columns of the model, or those of an entity: {', '.join(self.table.entity)}",
                    name,
                    place,
                )
        try:
            return self.table.entity_of(row)
        except OnlineEntityRefused as error:
            field = next((one for one in self.table.entity if str(error).startswith(f"{one} is ")), None)
            raise RequestRefused(422, f"{error}: it names the entity", field, place) from None

    def _read(self, entities: Mapping[int, str], lacking: Mapping[int, str]) -> dict[int, OnlineRow | None]:
        if not entities:
            return {}
        try:
            return dict(zip(entities, self.table.newest(self.store, list(entities.values())), strict=True))
        except OnlineStoreError as error:
            if not lacking:
                return {}
            raise RequestRefused(503, f"{error}. Or send all columns of the model", None) from None

    def _absent(self, row: RawRow, column: str | None, place: int | None) -> RequestRefused:
        entity = " ".join(f"{name}={row[name]}" for name in self.table.entity)
        return RequestRefused(
            422,
            f"column {column!r} is missing, and the online store has no row of {self.table.table} for {entity}, or it "
            f"has expired: send the column, or store newer rows: ml-assets launch {self.table.table}/online PARTITIONS",
            column,
            place,
        )

    def _filled(self, row: RawRow, stored: OnlineRow, wanted: frozenset[str]) -> tuple[RawRow, LookedUp]:
        try:
            values = self.table.values_in(stored)
        except OnlineRowsDiffer as error:
            raise RequestRefused(503, f"{error}. Or send all columns of the model") from None
        kept = wanted.union(self.primary_key)
        new = {name: _as_sent(value) for name, value in values.items() if name in kept and name not in row}
        return {**row, **new}, LookedUp(
            columns=tuple(new),
            features_at=_moment(stored.event_us),
            known_at=_moment(stored.known_us),
        )


def _wanted(served: Roles) -> frozenset[str]:
    """Return the columns that any version of the model reads, or that name the entity of its canary."""
    versions = (served.production, served.canary, *served.shadows)
    return _entity_of_canary(served).union(*map(_inputs, versions))


def _inputs(version: ServedVersion | None) -> frozenset[str]:
    return frozenset() if version is None else frozenset(one.name for one in version.runtime.inputs)


def _entity_of_canary(served: Roles) -> frozenset[str]:
    return frozenset() if served.share is None else frozenset(served.share.by)


def _as_sent(value: Any) -> Any:
    """Return a value as a client would send it in JSON: bytes as base64, times as ISO 8601, NaN as null."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return None if isnan(value) else value
    return value if value is None or isinstance(value, bool | int | str) else value.isoformat()


def _moment(since_epoch_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=since_epoch_us)
