"""Rows of a feature table in an online store: the key of an entity, the values bit for bit, the filling of the store.

The content of a row is JSON: the hash of the columns' types, and the values in the order of the columns. JSON's numbers
are exact, because Python writes the shortest text that reads as the same float64. The rows are those of validated
partitions in the lake, which the feature function made. So the same function serves offline and online. Not here: the
store, and the comparison with rows that it holds already (`resources.online`), the check of partitions (`guard`).
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from math import isfinite
from typing import Any

import orjson
import polars as pl

from ml_assets.data.tables.reader import TableReader
from ml_assets.data.validation.column_types import FLOATS, NUMERIC, POLARS_TYPES, Schema, schema_hash
from ml_assets.foundation.days import MICROSECOND
from resources.online import OnlineRow, OnlineStore
from resources.words import did_you_mean, whole_number

ENTITY_TYPES = (NUMERIC - FLOATS) | {"string", "bool", "date"}
"""Types of columns that can name an entity. Floats have no text of their own, and moments belong to the event."""
KEPT_TYPES = NUMERIC | {"string", "bool", "date", "datetime", "binary"}
"""Types of columns that an online store keeps."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HASH_DIGITS = 16


class OnlineEntityRefused(ValueError):
    """An entity is not named as declared: a column is missing or unknown, or its value is of another type."""


class NothingOnline(Exception):
    """A feature table does not declare that its rows are online."""


class OnlineRowsDiffer(Exception):
    """The online store holds rows of another declaration of the table."""


@dataclass(frozen=True, kw_only=True)
class OnlineTable:
    """Declaration of the part of a feature table that is online."""

    table: str
    """Table id."""
    entity: tuple[str, ...]
    """Columns that name an entity."""
    event_at: str
    """Column with the moment of the prediction. The row with the newest one is kept."""
    ttl: timedelta | None
    """Age, counted from `event_at`, at which a row is no longer returned; None: never."""
    columns: Schema
    """(name, type name) of the columns that are kept: those of the contract, without labels."""

    @property
    def ttl_us(self) -> int | None:
        """`ttl` in microseconds."""
        return None if self.ttl is None else self.ttl // MICROSECOND

    @cached_property
    def hash(self) -> str:
        """Hash of the columns, which each stored row names."""
        return schema_hash(self.columns)[:_HASH_DIGITS]

    @cached_property
    def types(self) -> Mapping[str, str]:
        """Column → type name."""
        return dict(self.columns)

    def entity_of(self, values: Mapping[str, object]) -> str:
        """Return the key of the entity that `values` name: values of the columns, or texts as typed or sent as JSON.

        Raises `OnlineEntityRefused` for a missing or null column, and for a value that is not of the column's type.
        """
        if missing := [name for name in self.entity if values.get(name) is None]:
            raise OnlineEntityRefused(
                f"{', '.join(missing)} not given: an entity of {self.table} is named by {', '.join(self.entity)}"
            )
        return orjson.dumps([self._part(name, values[name]) for name in self.entity]).decode()

    def entity_typed(self, pairs: Sequence[str]) -> dict[str, str]:
        """Return column → text of `COLUMN=VALUE` texts. Raises `OnlineEntityRefused`."""
        typed: dict[str, str] = {}
        for pair in pairs:
            name, equals, text = pair.partition("=")
            if not equals or name not in self.entity:
                hint = did_you_mean(name, self.entity) if equals else ""
                raise OnlineEntityRefused(
                    f"'{pair}' does not name a part of an entity{hint}: write "
                    f"{' '.join(f'{one}=…' for one in self.entity)}"
                )
            typed[name] = text
        return typed

    def rows_of(self, frame: pl.DataFrame, known_at: datetime) -> list[OnlineRow]:
        """Return the rows of `frame`, which has the kept columns, without nulls in `entity` and `event_at`."""
        known_us = (known_at - _EPOCH) // MICROSECOND
        names = [name for name, _ in self.columns]
        packs = [_PACK.get(dtype) for _, dtype in self.columns]
        at, places = names.index(self.event_at), [names.index(name) for name in self.entity]
        found: list[OnlineRow] = []
        for values in frame.select(names).iter_rows():
            packed: list[Any] = [
                value if pack is None or value is None else pack(value)
                for value, pack in zip(values, packs, strict=True)
            ]
            found.append(
                OnlineRow(
                    entity=orjson.dumps([packed[place] for place in places]).decode(),
                    event_us=packed[at],
                    known_us=known_us,
                    content=orjson.dumps([self.hash, packed]),
                )
            )
        return found

    def newest(self, store: OnlineStore, entities: Sequence[str]) -> list[OnlineRow | None]:
        """Return the row of each entity in `store`; None without one, or if it is older than `ttl`.

        Rows that were stored under another `ttl` expire by the declared one, too. Raises `OnlineStoreError`.
        """
        rows = store.read(self.table, entities)
        if self.ttl_us is None:
            return rows
        begin = (datetime.now(UTC) - _EPOCH) // MICROSECOND - self.ttl_us
        return [row if row is not None and row.event_us > begin else None for row in rows]

    def values_in(self, row: OnlineRow) -> dict[str, Any]:
        """Return column → value of a stored row. Raises `OnlineRowsDiffer` if it has other columns than declared."""
        stored, values = orjson.loads(row.content)
        if stored != self.hash:
            raise OnlineRowsDiffer(
                f"the online store holds {self.table} with other columns than its contract has now: materialize "
                f"{self.table}/online again for the newest partitions"
            )
        return {
            name: value if value is None or (unpack := _UNPACK.get(dtype)) is None else unpack(value)
            for (name, dtype), value in zip(self.columns, values, strict=True)
        }

    def frame_of(self, rows: Sequence[OnlineRow]) -> pl.DataFrame:
        """Return stored rows as a frame with the types of the feature table. Raises `OnlineRowsDiffer`."""
        schema = {name: POLARS_TYPES[dtype] for name, dtype in self.columns}
        return pl.DataFrame([self.values_in(row) for row in rows], schema=schema)

    def _part(self, name: str, value: object) -> Any:
        dtype = self.types[name]
        try:
            part = _NAMED.get(dtype, _whole)(value)
            orjson.dumps(part)  # refuses integers beyond 64 bits, and text that is not Unicode
            return part
        except (KeyError, TypeError, ValueError) as error:
            raise OnlineEntityRefused(
                f"{name} is {value!r}, which is not a {dtype} of {self.table}"
            ) from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _truth(value: object) -> bool:
    return value if isinstance(value, bool) else {"true": True, "false": False}[_text(value).lower()]


def _day(value: object) -> str:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    text = _text(value)
    if date.fromisoformat(text).isoformat() != text:  # Python also reads 20240308 and 2024-W10-5
        raise ValueError
    return text


def _whole(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = whole_number(_text(value))
    if number is None:
        raise ValueError
    return number


_NAMED: Mapping[str, Callable[[object], Any]] = {"string": _text, "bool": _truth, "date": _day}
"""Type of a column → the part of an entity's key for a value, or for a text that somebody typed."""


def _packed_float(value: float) -> float | str:
    return value if isfinite(value) else repr(value)  # JSON has no NaN and no infinity


_PACK: Mapping[str, Callable[[Any], Any]] = {
    "float32": _packed_float,
    "float64": _packed_float,
    "date": date.isoformat,
    "datetime": lambda value: (value - _EPOCH) // MICROSECOND,
    "binary": lambda value: base64.b64encode(value).decode(),
}
_UNPACK: Mapping[str, Callable[[Any], Any]] = {
    "float32": float,
    "float64": float,
    "date": date.fromisoformat,
    "datetime": lambda value: _EPOCH + value * MICROSECOND,
    "binary": base64.b64decode,
}


_PARTITIONS_AT_ONCE = 28


class EntityAmbiguous(ValueError):
    """An entity has several newest rows."""


@dataclass(frozen=True, kw_only=True)
class Filled:
    """Result of filling."""

    rows: int
    """Rows of the partitions."""
    sent: int
    """Newest rows of their entities that have not expired."""
    written: int
    """Rows among them that were stored. The store had a newer row of the other entities."""
    nameless: int
    """Rows that name no entity, because a column of it is null."""


def fill_online(
    store: OnlineStore, declared: OnlineTable, reader: TableReader, keys: Sequence[str]
) -> Filled:
    """Store the newest rows of partitions `keys`. Repeating it changes nothing.

    A row's version is the time of the reader's commit: if partitions are corrected, a run that reads the later commit
    wins, whichever writes first. Raises `EntityAmbiguous` if two rows of an entity have the newest moment, `LakeError`
    and `OnlineStoreError`.
    """
    known_at = reader.store.read_commit(reader.commit_id).created_at
    names = [name for name, _ in declared.columns]
    entity, at = list(declared.entity), declared.event_at
    rows = nameless = sent = written = 0
    for start in range(0, len(keys), _PARTITIONS_AT_ONCE):
        some = reader.scan(declared.table, keys[start : start + _PARTITIONS_AT_ONCE]).select(names).collect()
        named = some.drop_nulls(entity)
        rows += some.height
        nameless += some.height - named.height
        newest = named.filter(pl.col(at) == pl.col(at).max().over(entity))
        _require_one_each(declared, newest)
        if declared.ttl is not None:
            newest = newest.filter(pl.col(at) > datetime.now(UTC) - declared.ttl)
        sent += newest.height
        written += store.write(declared.table, declared.rows_of(newest, known_at), declared.ttl_us)
    return Filled(rows=rows, sent=sent, written=written, nameless=nameless)


def _require_one_each(declared: OnlineTable, newest: pl.DataFrame) -> None:
    """Raise `EntityAmbiguous` if an entity has several rows."""
    entity = list(declared.entity)
    twice = newest.filter(pl.struct(entity).is_duplicated())
    if twice.height:
        raise EntityAmbiguous(
            f"{declared.table}: {twice.select(entity).n_unique()} entities have several rows with the newest "
            f"{declared.event_at}. Add columns to `online.entity` ({', '.join(entity)}) that tell these rows apart"
        )
