"""Predictions for the partition that comes next, as `ml-assets predict` makes them. Nothing here writes.

The rows of that partition are those that the source already holds, or else rows like those of the newest partitions
(`tables.coming_rows`). Each value that `known_at` hides at its begin is absent, so the feature function sees what is
known in advance, and the past. Not here: days that are over, which `launch MODEL/predictions` scores.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

import polars as pl

from ml_assets.components.specs import DatasetSpec, FeatureTableSpec, InputSection
from ml_assets.context.errors import PredictionRefused
from ml_assets.context.project import Project
from ml_assets.context.versions import registered_version
from ml_assets.data.features.cut_and_rebuild import KnowledgeRule, known_by
from ml_assets.data.sources.kinds import kind, open_source
from ml_assets.data.sources.protocol import Span
from ml_assets.data.tables.cadence import Cadence, CadenceKind, fit_of
from ml_assets.data.tables.coming_rows import SEEN, ComingRowsUnknown, coming_rows
from ml_assets.data.tables.declared import InputTable
from ml_assets.data.tables.guard import together, validate_window
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.user_code import building, resolve_function
from ml_assets.data.validation.check import check_partitions, schema_findings
from ml_assets.data.validation.column_types import polars_type
from ml_assets.data.validation.contract import Contract
from ml_assets.foundation.days import after, begin_of
from ml_assets.model.release.releases import bundles_of
from ml_assets.model.release.runtime import InputRefused, ServingModel
from ml_assets.model.steps.scoring import ONE_NUMBER
from resources.words import counted, name_some

_PLANNED_BY = ("python", "sql")
"""Kinds of sources that may hold rows of days to come: their readers take any day."""


@dataclass(frozen=True, kw_only=True)
class ComingPrediction:
    """Predictions for the rows of a partition that comes."""

    model: str
    version: int
    in_production: bool
    partition: str
    newest: str
    """Newest partition of the input on main: later values are not known."""
    note: str
    """Sentence on newer rows that no launch built yet; empty if there are none."""
    rows: pl.DataFrame
    """A row for each prediction: the columns that name it, then `prediction`, or a probability for each class."""


def predict_next(project: Project, model: str, version: int | None = None) -> ComingPrediction:
    """Predict the partition after the newest one on main, with a version (None: in production, or else the newest).

    Raises `NotFound`, `VersionMissing`, `PredictionRefused`, and the errors of source and feature function.
    """
    spec = project.declared.pipeline(model)
    features = project.declared.feature_table(spec.features.table)
    dataset = project.declared.dataset(_dated_input(features).table)
    registered = registered_version(project, model, version)
    reader = project.reader()
    table = f"datasets/{dataset.name}"
    newest = newest_whole(features, dataset, reader.keys(table))
    if newest is None:
        raise PredictionRefused(
            f"{table} has no whole partition on main, so nothing is known: ml-assets launch {model} DATE --with-missing"
        )
    coming = ComingPartition(
        features=features,
        dataset=dataset,
        entity=spec.evaluation.baseline.entity or (),
        newest=newest,
    )
    planned = _planned(project, coming)
    rows = coming.built(
        _past(project, reader, coming),
        planned,
        {
            one.table: reader.scan(one.table, reader.keys(one.table)).collect()
            for one in features.inputs
            if one.table != table
        },
    )
    served = ServingModel.load(bundles_of(project.platform).open(registered.bundle_digest).folder, threads=1)
    outputs = list(served.columns or (ONE_NUMBER,))
    try:
        found = served.predict(rows).reshape(rows.height, len(outputs))
    except InputRefused as error:
        raise PredictionRefused(
            f"version {registered.number} of {model} cannot read the rows that features/{features.name} has now: "
            f"{error}. Train a version with the present columns: ml-assets launch {model} DATE"
        ) from error
    naming = dict.fromkeys((*coming.names, *spec.features.primary_key))
    names = [name for name in naming if name in rows.columns and rows[name].null_count() < rows.height]
    if dataset.contract.event_time not in names:
        names = [features.partition_date, *names]
    stage = project.releases.standings(model).of(registered.bundle_digest).stage
    return ComingPrediction(
        model=model,
        version=registered.number,
        in_production=stage == "production",
        partition=coming.key,
        newest=coming.newest,
        note=_note(coming, planned),
        rows=pl.concat(
            [
                _in_zone(rows.select(names), dataset.contract),
                pl.DataFrame(found, schema=outputs, orient="row"),
            ],
            how="horizontal",
        ),
    )


def _in_zone(rows: pl.DataFrame, contract: Contract) -> pl.DataFrame:
    """Return `rows` with the event time by the clock of its zone, in which the partition begins at midnight."""
    time = contract.event_time
    if time not in rows.columns or not isinstance(rows.schema[time], pl.Datetime):
        return rows
    return rows.with_columns(pl.col(time).dt.convert_time_zone(contract.event_time_zone))


def _dated_input(features: FeatureTableSpec) -> InputSection:
    dated, own = [one for one in features.inputs if one.lookback != "all"], features.cadence.kind
    if len(dated) != 1 or not dated[0].table.startswith("datasets/") or not _is_read_whole(own, dated[0]):
        raise PredictionRefused(
            f"features/{features.name} reads {name_some([one.table for one in features.inputs])}: the rows of a day to "
            "come are known for a feature table that reads one dataset, of its own cadence or a shorter one. Build "
            "them in a notebook, with the function of the table"
        )
    return dated[0]


def _is_read_whole(own: CadenceKind, read: InputSection) -> bool:
    return fit_of(own, read.cadence or own) in ("same", "finer")


def newest_whole(features: FeatureTableSpec, dataset: DatasetSpec, present: Iterable[str]) -> str | None:
    """Return the newest partition of `features` that is over by the `present` keys of its dataset; None without any.

    A day whose last hour is on main is over. A day of which main has some hours is the one that comes.
    """
    own = Cadence(features.cadence.kind, dataset.cadence.start)
    read = Cadence(dataset.cadence.kind, dataset.cadence.start)
    if not (found := read.newest_of(present)):
        return None
    last = read.bounds(found[-1])[1]
    return (own.complete(last) or [None])[-1]


@dataclass(frozen=True, kw_only=True)
class ComingPartition:
    """The partition of a feature table that comes next."""

    features: FeatureTableSpec
    """It reads one dataset, and perhaps tables without partitions."""
    dataset: DatasetSpec
    entity: Sequence[str]
    """Columns that tell one series of the dataset from another."""
    newest: str
    """Key of the newest partition of the features whose rows of the dataset are on main."""

    @property
    def table(self) -> str:
        """Name of the dataset in the lake."""
        return f"datasets/{self.dataset.name}"

    @property
    def cadence(self) -> Cadence:
        """Cadence of the features, beyond the dataset's declared end: the source may have grown."""
        return Cadence(self.features.cadence.kind, self.dataset.cadence.start)

    @property
    def time_zone(self) -> str:
        """Zone in which the partition begins."""
        return "UTC" if self.dataset.cadence.kind == "hourly" else self.dataset.contract.event_time_zone

    @property
    def span(self) -> Span:
        """Days of the partition."""
        first = after(self.cadence.bounds(self.newest)[1])
        return Span(first, after(self.cadence.bounds(self.cadence.key_of(first))[1]))

    @property
    def key(self) -> str:
        """Key of the partition."""
        return self.cadence.key_of(self.span.first)

    @property
    def source(self) -> InputTable:
        """The dataset as the feature table reads it."""
        lookback = _dated_input(self.features).lookback
        return InputTable(
            table=self.table,
            cadence=Cadence(self.dataset.cadence.kind, self.dataset.cadence.start),
            lookback=0 if lookback == "all" else lookback,
            read_by=self.cadence,
            days_begin_in=self.time_zone,
        )

    @property
    def keys(self) -> list[str]:
        """Keys of the dataset's partitions that make up the partition."""
        return [key for key in self.source.needed_for(self.key) if key >= self.key]

    @property
    def names(self) -> tuple[str, ...]:
        """Columns that name a row: the event time and the entity, or the rest of the primary key."""
        key = self.dataset.contract.primary_key
        named = key if self._event_time in key else ()
        entity = [name for name in self.entity if name in self.dataset.contract.names]
        return tuple(dict.fromkeys((self._event_time, *named, *entity)))

    @property
    def _event_time(self) -> str:
        found = self.dataset.contract.event_time
        if found is None:
            raise PredictionRefused(
                f"the contract of {self.table} has no `event_time`, so no row of {self.key} can be made: declare it"
            )
        return found

    @property
    def _rules(self) -> Sequence[KnowledgeRule]:
        rules = _dated_input(self.features).known_at
        if rules is None:
            raise PredictionRefused(
                f"features/{self.features.name} does not say which values of {self.table} are known in advance: "
                "declare `known_at` of its input"
            )
        return rules

    def built(
        self,
        past: Sequence[tuple[str, pl.DataFrame]],
        planned: pl.DataFrame,
        others: Mapping[str, pl.DataFrame] = MappingProxyType({}),
    ) -> pl.DataFrame:
        """Return the rows of the feature table, without labels, by its contract.

        `past` holds key and rows of the partitions that the function looks back at, oldest first; `planned` are the
        rows of the coming partition that the source holds already, and `others` the inputs without partitions.
        """
        contract = self.dataset.contract
        begin = begin_of(self.span.first, self.time_zone)
        self._require_plan(planned)
        coming = _as_stored(self._rows([one for one in past if one[1].height], planned), contract)
        before = [rows.select(coming.columns) for _, rows in past]
        inputs = {self.table: known_by(pl.concat([*before, coming]), self._rules, begin), **others}
        last = self.cadence.bounds(self.key)[1]
        rows = building(resolve_function(self.features.function))(inputs, self.span.first, last)
        rows = rows.filter(pl.col(self.features.partition_date) == self.span.first)
        if rows.is_empty():
            raise PredictionRefused(
                f"{self.features.function} returned no row of {self.key}: let it keep rows without a label"
            )
        rows = rows.drop(self.features.labels, strict=False)
        if found := check_partitions({self.key: rows}, self._contract)[self.key]:
            raise PredictionRefused(
                f"features/{self.features.name} {self.key} breaks its contract: {found[0].explanation}"
            )
        return rows

    @property
    def _contract(self) -> Contract:
        """Contract of the features without labels; numbers of rows, which nobody gave yet, may be null."""
        declared = self.features.contract
        numbered = set(self.dataset.contract.primary_key) - set(self.names)
        columns = [
            one.model_copy(update={"nullable": True}) if name in numbered else one
            for name, one in declared.by_name.items()
            if name not in self.features.labels
        ]
        return Contract(columns=tuple(columns), primary_key=() if numbered else declared.primary_key)

    @property
    def _hidden(self) -> set[str]:
        """Columns whose values are not known when the partition begins."""
        return {name for rule in self._rules for name in (rule.column, *rule.columns)}

    def planned_in(self, frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """Return the rows in `frames`, one of each of `keys`; empty if there are none.

        Raises `PredictionRefused` for rows whose columns are not those of the contract.
        """
        found = [frame for frame in frames if frame.height]
        for findings in filter(None, (schema_findings(frame, self.dataset.contract) for frame in found)):
            raise PredictionRefused(
                f"rows of {self.key} in the source of {self.table} break its contract: {findings[0].explanation}"
            )
        return (
            pl.concat([self.dataset.contract.in_order(frame) for frame in found]) if found else pl.DataFrame()
        )

    def _require_plan(self, planned: pl.DataFrame) -> None:
        """Raise `PredictionRefused` for planned values that the dataset would reject, such as a price out of range."""
        contract = self.dataset.contract
        known = [
            one.model_copy(update={"nullable": True}) if name in contract.primary_key else one
            for name, one in contract.by_name.items()
            if name in planned.columns and name not in self._hidden
        ]
        if planned.is_empty() or not known:
            return
        rows = planned.select(str(one.name) for one in known)
        if found := check_partitions({self.key: rows}, Contract(columns=tuple(known)))[self.key]:
            raise PredictionRefused(
                f"rows of {self.key} in the source of {self.table} break its contract: {found[0].explanation}"
            )

    def _rows(self, past: Sequence[tuple[str, pl.DataFrame]], planned: pl.DataFrame) -> pl.DataFrame:
        """Return the planned rows, and those like earlier ones if nothing but their names is known of a row."""
        hidden, contract = self._hidden, self.dataset.contract
        known = [one for one in contract.names if one not in (*self.names, *contract.primary_key, *hidden)]
        if known and planned.is_empty():
            raise PredictionRefused(
                f"{name_some(known)} of {self.table} must be known in advance, and its source has no row of "
                f"{self.key}: add its rows there, with {name_some([*self.names, *known])}; leave the rest empty"
            )
        if known:
            return planned
        try:
            like_before = coming_rows(
                past[-SEEN:],
                self.key,
                event_time=self._event_time,
                names=self.names[1:],
                cadence=self.cadence,
                zone=self.time_zone,
            )
        except ComingRowsUnknown as error:
            if planned.is_empty():
                raise PredictionRefused(
                    f"earlier rows of {self.table} do not tell which rows {self.key} will have, because {error}: add "
                    f"them to its source, with {name_some(self.names)}; leave the rest empty"
                ) from error
            return planned
        if planned.is_empty():
            return like_before
        more = like_before.join(planned, on=self.names, how="anti", nulls_equal=True)
        return pl.concat([planned, more], how="diagonal")


def _planned(project: Project, coming: ComingPartition) -> pl.DataFrame:
    """Return the rows that the source holds for the coming partition already; empty if it holds none."""
    dataset = coming.dataset
    if kind(dataset.source) not in _PLANNED_BY:
        return pl.DataFrame()
    with closing(open_source(dataset.source, dataset.source_table, project.platform)) as source:
        read = coming.source.cadence
        spans = [Span(first, after(last)) for first, last in map(read.bounds, coming.keys)]
        frames = [source.read(span).frame for span in spans]
    return coming.planned_in(frames)


def _past(project: Project, reader: TableReader, coming: ComingPartition) -> list[tuple[str, pl.DataFrame]]:
    """Return key and rows of the features' partitions that the function looks back at, as they are known now.

    Raises `PredictionRefused` unless all are on main and passed.
    """
    source, ledger = coming.source, project.platform.ledger
    before = [key for key in source.needed_for(coming.key) if key < coming.key]
    keys = before or [key for key in source.needed_for(coming.newest) if key >= coming.newest]
    tables = project.declared.tables_with(project.defs_of(coming.table))
    state = validate_window(reader, ledger, tables, coming.table, keys)
    if not state.ok:
        said = [f"{what} {why}" for what, why in together(state.refused).items()]
        if state.missing:
            typed = "..".join(dict.fromkeys((state.missing[0], state.missing[-1])))
            said.append(f"it lacks {name_some(state.missing)}: ml-assets launch {coming.table} {typed}")
        raise PredictionRefused(
            f"features of {coming.key} look back at partitions of {coming.table} that cannot be used: {'; '.join(said)}"
        )
    known = source.as_known(reader, ledger, coming.key)
    together_in: dict[str, list[str]] = {}
    for key in keys:
        together_in.setdefault(coming.cadence.key_of(source.cadence.bounds(key)[0]), []).append(key)
    return [(own, known.scan(coming.table, some).collect()) for own, some in together_in.items()]


def _note(coming: ComingPartition, planned: pl.DataFrame) -> str:
    end = begin_of(coming.span.end, coming.time_zone)
    if planned.is_empty() or end > datetime.now(UTC):
        return ""
    typed = "..".join(dict.fromkeys((coming.keys[0], coming.keys[-1])))
    is_beyond = not coming.dataset.cadence.covers(coming.keys[-1])
    first = ", remove `end` from the partitions in its defs.yaml, then" if is_beyond else ""
    return (
        f"{coming.key} is over and not on main: the source has {counted(planned.height, 'row')} of it. To predict what "
        f"comes after it{first}: ml-assets launch {coming.table} {typed}"
    )


def _as_stored(rows: pl.DataFrame, contract: Contract) -> pl.DataFrame:
    """Return `rows` with all columns of the table; null where they have none."""
    return rows.select(
        (pl.col(name) if name in rows.columns else pl.lit(None)).cast(polars_type(dtype)).alias(name)
        for name, dtype in contract.stored_schema
    )
