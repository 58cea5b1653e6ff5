"""Source `table`: a table of another repository, or another table of this one, at one commit."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import cached_property
from typing import Annotated, Literal, Self, cast

import polars as pl
from pydantic import Field, model_validator

from ml_assets.data.sources.protocol import (
    Answer,
    Look,
    PublicAddress,
    ReadPartition,
    SourceAway,
    SourceReader,
    SourceRefused,
    SourceRows,
    SourceSection,
    SourceTable,
    Span,
    VariableName,
    differing,
    variable,
)
from ml_assets.data.sources.tabular import faults_of, fit, require_columns
from ml_assets.data.tables.cadence import UNPARTITIONED, Cadence, CadenceKind, begin_of_key
from ml_assets.data.tables.history.log import facts_of
from ml_assets.data.tables.reader import ColumnsDiffer, PartitionMissing, TableReader
from ml_assets.data.validation.column_types import polars_type
from ml_assets.foundation.days import HOUR, after, begin_of
from resources.addresses import hide_credentials
from resources.lake import Commit, LakeBusy, LakeError, LakeUnavailable
from resources.platform import Platform
from resources.words import name_some

_REMEDY = "change the table in its own project"
_EVERY = 1 << 31
"""Commits of a whole history."""


class TableSource(SourceSection):
    """Source that is a table in a lake of this platform."""

    kind: Literal["table"]
    """A table that this platform made, here or in another project."""
    table: Annotated[str, Field(pattern=r"^(datasets|features)/\w+$")]
    """`datasets/<name>` or `features/<name>`."""
    lake: PublicAddress | None = None
    """Folder of an embedded lake, or `lakefs://repository`. Default: the lake of this project."""
    ref: str = "main"
    """Branch, tag or commit id. A branch is read at the commit that it has when a run begins."""
    url_env: VariableName | None = None
    """Environment variable with the address of the lakeFS server. Default: the platform's server and keys."""
    access_key_id_env: VariableName | None = Field(default=None, examples=["SHOP_KEY_ID"])
    """Environment variable with the access key; required with `url_env`."""
    secret_access_key_env: VariableName | None = Field(default=None, examples=["SHOP_SECRET_KEY"])
    """Environment variable with the secret key; required with `url_env`."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        named = [self.url_env, self.access_key_id_env, self.secret_access_key_env]
        if any(named) and not all(named):
            raise ValueError("`url_env`, `access_key_id_env` and `secret_access_key_env` go together")
        if any(named) and not (self.lake or "").startswith("lakefs://"):
            raise ValueError("a server of its own needs `lake: lakefs://repository`")
        return self


class LakeTableReader(SourceReader):
    """Rows of the partitions of a table. The commit is chosen once, so all partitions of a run share it."""

    looks_at = "digests of all partitions"

    def __init__(self, section: TableSource, table: SourceTable, platform: Platform) -> None:
        super().__init__(table, platform)
        self._section = section
        keys = (section.url_env, section.access_key_id_env, section.secret_access_key_env)
        self._access = tuple(variable(name, platform) for name in keys if name)
        self._platform = platform
        if section.lake is None and section.table == table.name:
            raise SourceRefused(
                f"{table.name}: source.table is the table itself: name another one, or source.lake"
            )

    def read(self, span: Span | None) -> SourceRows:
        """See `SourceReader`. The watermark is the time of the newest commit about these partitions."""
        keys = self._keys_of(span)
        manifests = self._ask(lambda: self._lake.manifests(self._section.table, keys))
        frame = self._ask(lambda: self._lake.scan(self._section.table, keys).collect())
        about = (one for one in self._log if _keys_named(one, self._section.table).intersection(keys))
        newest = next(about, None)
        frame = fit(frame, self._table, self._place, _REMEDY)
        return SourceRows(
            frame=frame,
            returned=sum(one.rows for one in manifests.values()),
            watermark=newest.created_at if newest else None,
            version=self._digests_of(keys),
        )

    def latest(self) -> date | None:
        """See `SourceReader`. The last day of the newest partition: a partition on main is complete."""
        keys = self._ask(lambda: self._lake.keys(self._section.table))
        if not keys or self._cadence.kind == "none":
            return None
        _, last = self._cadence.bounds(keys[-1])
        if self._table.is_hourly:
            return begin_of(after(last), "UTC") - HOUR
        if isinstance(last, datetime):  # a day is complete with its last hour
            return begin_of(after(last), "UTC").date() - timedelta(days=1)
        return last

    def look(self, read: Mapping[Span, ReadPartition], window: Collection[Span]) -> Look:
        """See `SourceReader`. Compares the digests of all partitions, which cost nothing. A partition that was only
        materialized again there has the same digest."""
        versions = {span: version for span in read if (version := self._version_of(span)) is not None}
        return Look(latest=self.latest(), changed=differing(read, versions), cost={"digests": len(versions)})

    def preview(self, rows: int) -> pl.DataFrame:
        """See `SourceReader`."""
        newest = self._existing()[-1:]
        return self._ask(lambda: self._lake.scan(self._section.table, newest).head(rows).collect())

    def check(self) -> Sequence[str]:
        """See `SourceReader`."""
        newest = self._existing()[-1]
        manifest = self._ask(lambda: self._lake.manifest(self._section.table, newest))
        found = {name: polars_type(dtype) for name, dtype in manifest.schema.items()}
        return faults_of(
            lambda: require_columns(found, self._table, self._place, _REMEDY), self._require_cadence
        )

    def close(self) -> None:
        """Choose the commit again at the next use."""
        for name in ("_lake", "_log", "_cadence"):
            if name in vars(self):
                delattr(self, name)

    @cached_property
    def _lake(self) -> TableReader:
        section, platform = self._section, self._platform
        return self._ask(lambda: TableReader.at(platform.lake_at(section.lake, self._access), section.ref))

    @cached_property
    def _log(self) -> Sequence[Commit]:
        """History of the commit, newest first."""
        return self._ask(lambda: list(self._lake.store.log(self._lake.commit_id, limit=_EVERY)))

    @cached_property
    def _cadence(self) -> Cadence:
        """Cadence of the other table, as its newest manifest states it."""
        keys = self._existing()
        kind = self._ask(lambda: self._lake.manifest(self._section.table, keys[-1])).cadence
        begin = begin_of_key(keys[0])
        return Cadence(cast("CadenceKind", kind), begin.date() if isinstance(begin, datetime) else begin)

    @property
    def _place(self) -> str:
        return f"{self._section.table} of {self._section.lake or 'this lake'} at {self._section.ref}"

    def _existing(self) -> list[str]:
        keys = self._ask(lambda: self._lake.keys(self._section.table))
        if not keys:
            tables = self._ask(self._lake.tables)
            raise SourceRefused(
                f"{self._table.name}: {self._place} has no partition: correct source.table, or materialize it there. "
                f"Tables with partitions: {name_some(tables) or 'none'}"
            )
        return keys

    def _require_cadence(self) -> None:
        is_dated, cadence = self._table.start is not None, self._cadence
        if is_dated == (cadence.kind == "none"):
            has = f"{cadence.kind} partitions" if cadence.kind != "none" else "no partitions"
            raise SourceRefused(
                f"{self._table.name}: {self._place} has {has}: declare the same `partitions` for this dataset, or none"
            )

    def _keys_of(self, span: Span | None) -> list[str]:
        """Return the keys of the partitions that hold the days of `span`. Raises `SourceRefused` if one is missing."""
        self._require_cadence()
        if span is None:
            return [UNPARTITIONED]
        cadence, days = self._cadence, span.days("UTC")
        first, last = (span.first, span.first) if self._table.is_hourly else (days[0], days[-1])
        wanted = Cadence(cadence.kind, days[0]).keys(first, last)
        theirs = Span(cadence.bounds(wanted[0])[0], after(cadence.bounds(wanted[-1])[1]))
        if theirs.moments("UTC") != span.moments("UTC"):
            raise SourceRefused(
                f"{self._table.name}: {self._place} has {cadence.kind} partitions, and {wanted[0]} holds more than the "
                f"partition of {first}: give this dataset the cadence {cadence.kind}"
            )
        if missing := [key for key in wanted if key not in self._existing()]:
            raise SourceRefused(
                f"{self._table.name}: {self._place} has no partition {name_some(missing)}: materialize it there first"
            )
        return wanted

    def _version_of(self, span: Span) -> str | None:
        """Return the version of the partitions that hold the days of `span`; None if one of them is gone."""
        try:
            return self._digests_of(self._keys_of(span))
        except SourceAway:
            raise
        except SourceRefused:
            return None

    def _digests_of(self, keys: Sequence[str]) -> str:
        digests = self._ask(lambda: self._lake.digests(self._section.table))
        return " ".join(digests[key] for key in keys)

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        """Return the result of `call`. The lake itself retries. Raises our errors only."""
        try:
            return call()
        except (LakeUnavailable, LakeBusy) as error:
            raise SourceAway(
                f"{self._table.name}: {self._place} did not answer: {hide_credentials(str(error))}"
            ) from error
        except (LakeError, PartitionMissing, ColumnsDiffer) as error:
            raise SourceRefused(
                f"{self._table.name}: {self._place} cannot be read: {hide_credentials(str(error))} Check source.lake, "
                "source.ref and the rights of its keys"
            ) from error


def _keys_named(commit: Commit, table: str) -> frozenset[str]:
    """Return the partitions of `table` that a commit says it changed."""
    facts = facts_of(commit)
    return frozenset(facts.keys) if facts.table == table else frozenset()
