"""Vocabulary of `defs.yaml`, as strict pydantic sections.

Values only: nothing here makes Dagster objects or runs anything, so the CLI and the tests read the same vocabulary.
Not here: the sections for training and evaluating a model (`steps.spec`).
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from ml_assets.dagster_host.defs_folder import DISALLOWED_NAMES, is_valid_cron_schedule, is_valid_owner
from ml_assets.data.features.cut_and_rebuild import KnowledgeRule
from ml_assets.data.sources.kinds import AnySource
from ml_assets.data.sources.protocol import PartitionOpen, SourceTable
from ml_assets.data.tables.cadence import Cadence, PartitionsSection
from ml_assets.data.tables.layout import TableNameRefused, check_table
from ml_assets.data.tables.online import ENTITY_TYPES, KEPT_TYPES, NothingOnline, OnlineTable
from ml_assets.data.tables.spec import Retain, TableSpec
from ml_assets.data.tables.user_code import FunctionPath, VersionedPath
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.drift_rule import LEAST_BLOCKS, DriftRule, SkewRule, policy_faults
from ml_assets.data.validation.quarantine import OnBadRows, QuarantineSection
from ml_assets.data.validation.volume import VolumeRule, VolumeSection
from ml_assets.foundation.sections import Name, Partitions, Section, TimeZone, refuse_at
from ml_assets.model.evaluation.metrics.metrics import metrics_of
from ml_assets.model.steps.retraining import LiveSource, RetrainSection, rule_faults
from ml_assets.model.steps.spec import ADDED, PREDICTIONS, PipelineSpec
from ml_assets.use.live.served_skew import ServedSkewRule
from resources.words import did_you_mean


def _must_be_an_owner(text: str) -> str:
    if not is_valid_owner(text):
        raise ValueError(f"'{text}' is not an owner: write an e-mail address, or team:NAME")
    return text


Owner = Annotated[str, AfterValidator(_must_be_an_owner)]
"""An e-mail address, or `team:` and a name."""

Hours = Annotated[float, Field(ge=1 / 60, le=24 * 36_525)]
"""A minute, which is Dagster's least, to a century."""


def _must_be_cron(text: str) -> str:
    if not is_valid_cron_schedule(text):
        raise ValueError(
            f"'{text}' is not a cron schedule: write five fields, such as '0 3 * * *' for each day at 3:00"
        )
    return text


Cron = Annotated[str, AfterValidator(_must_be_cron)]
"""Five fields: minute, hour, day of the month, month, day of the week."""


def _switched_off(value: Any) -> Any:
    return "off" if value is False else value  # YAML's `off`


LeakageCheck = Annotated[
    Literal["weekly", "off"],
    BeforeValidator(_switched_off, json_schema_input_type=Literal["weekly", "off", False]),
]
"""Interval at which the leakage test runs by itself."""


class FreshnessSection(Section):
    """Greatest age of the newest materialization."""

    fail_after_hours: Hours
    """Hours after which the freshness check fails."""
    warn_after_hours: Hours | None = None
    """Hours after which it warns. Not given: it never warns."""

    @model_validator(mode="after")
    def _warns_first(self) -> Self:
        if self.warn_after_hours is not None and self.warn_after_hours >= self.fail_after_hours:
            raise ValueError(
                f"warn_after_hours {self.warn_after_hours:g} is not before fail_after_hours {self.fail_after_hours:g}"
            )
        return self


class BackfillSection(Section):
    """Division of a backfill into runs, which Dagster starts beside each other."""

    partitions_per_run: int = Field(ge=1, examples=[100])
    """Most partitions of a run."""


class TableSpecSection(Section):
    """Common part of datasets and feature tables."""

    name: Name
    """Name of the table, without `datasets/` or `features/`."""
    group_name: Name = "default"
    """Group on the lineage page: the tables and models of one folder usually share one."""
    description: str = Field(default="", examples=["Flights from New York."])
    """Text for the asset page."""
    owners: tuple[Owner, ...] = Field(default=(), examples=[["team:planning"]])
    """Owners on the asset page: e-mail addresses, or `team:name`."""
    contract: Contract
    """Columns, types and rules that each partition must keep."""
    volume: VolumeSection = VolumeRule()
    """Allowed deviation from the usual number of rows; `off`: any number passes."""
    drift: DriftRule | None = None
    """Comparison of each partition with the partitions before it. Not given: it is not compared."""
    freshness: FreshnessSection | None = None
    """Greatest age of the newest materialization. Not given: any age."""
    automation_condition: Literal["none", "on_valid_inputs"] = "none"
    """`on_valid_inputs`: materialize when upstream changed and its blocking checks passed."""
    on_bad_rows: OnBadRows = "reject"
    """`reject`: a row that breaks a rule rejects its partition. `quarantine`: a few such rows are set aside in a table
    of their own, and the others land."""
    quarantine: QuarantineSection | None = None
    """Limit for `on_bad_rows: quarantine`."""
    partitions: PartitionsSection | None = None
    """Partitions of the table. Not given: the table has no partitions."""
    deprecated: str = ""
    """Advice for those who read the table, such as the table to read instead. Its page and the plans of its readers
    show it. A deprecated table is built as before, and nothing is deleted."""
    retain: Retain | None = None
    """Newest partitions that `ml-assets gc` leaves on main. Not given: all."""
    backfill: BackfillSection | None = Field(default=None, examples=[{"partitions_per_run": 100}])
    """Division of a backfill into runs. Not given: one run for each range without a gap."""

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        why: dict[tuple[str | int, ...], str] = {}
        event_time = self.contract.event_time
        dtype = self.contract.by_name[event_time].dtype if event_time else "datetime"
        if self.cadence.kind == "hourly" and dtype != "datetime":
            why["contract", "event_time"] = (
                f"'{event_time}' is a {dtype}, which does not tell the hour of a row: name a column of type datetime"
            )
        if self.retain is not None and self.partitions is None:
            why["retain",] = "counts partitions, and this table has none: declare `partitions`, or remove it"
        if self.backfill is not None and self.partitions is None:
            why["backfill",] = (
                "divides partitions, and this table has none: declare `partitions`, or remove it"
            )
        if self.quarantine is not None and self.on_bad_rows != "quarantine":
            why["quarantine",] = (
                "sets a limit for rows that nothing sets aside: write on_bad_rows: quarantine, or remove it"
            )
        if self.drift is not None:
            why |= dict(policy_faults(self.drift, self.contract, ("drift",)))
            if self.partitions is None:
                why["drift",] = "compares partitions, and the table has none: add partitions, or remove it"
            elif self.drift.same_weekday and self.partitions.cadence != "daily":
                why["drift", "same_weekday"] = (
                    f"is for daily partitions, and these are {self.partitions.cadence}: remove it"
                )
        refuse_at(type(self).__name__, why)
        return self

    @property
    def referred_columns(self) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """Table to which a foreign key refers → dotted key that names columns of it → the columns."""
        named: dict[str, dict[str, tuple[str, ...]]] = {}
        for i, one in enumerate(self.contract.foreign_keys):
            key = f"contract.foreign_keys.{i}.{'references' if one.references else 'columns'}"
            named.setdefault(one.table, {})[key] = one.named
        return named

    def table(self, kind: str, version: str, inputs: Mapping[str, int | None] | None = None) -> TableSpec:
        """Return the table as it is published; `version` is the version of its code or source."""
        sets_aside = self.on_bad_rows == "quarantine"
        return TableSpec(
            kind=kind,
            name=self.name,
            contract=self.contract,
            cadence=self.cadence,
            volume=self.volume,
            drift=self.drift,
            quarantine_limit=(self.quarantine or QuarantineSection()).limit if sets_aside else None,
            retain=self.retain,
            deprecated=self.deprecated,
            code_version=version,
            inputs=inputs or {},
        )

    @property
    def cadence(self) -> Cadence:
        """Partitions as a `Cadence`, also for a table without partitions."""
        return self.partitions.as_cadence if self.partitions else Cadence("none")


class DatasetSpec(TableSpecSection):
    """A table that comes from a source."""

    source: AnySource
    """Source of its rows. `kind` names its kind; `python` if it is not given."""
    known_at: Literal["ingestion"] | None = None
    """`ingestion`: a source that changes its past does not change what features of the past knew. A changed partition
    keeps its earlier rows, and features of partitions that began before the change read these. Not given: features
    read the newest rows."""

    @model_validator(mode="after")
    def _contract_fits_the_source(self) -> Self:
        if (lacking := self.source.lacks_in(self.contract)) is not None:
            raise ValueError(lacking)
        return self

    @model_validator(mode="after")
    def _watch_needs_latest(self) -> Self:
        if self.source.watch is not None and self.source.lacks_for_latest is not None:
            raise ValueError(f"source.watch needs source.{self.source.lacks_for_latest}")
        if self.source.watch is not None and self.partitions is None:
            raise ValueError(
                "source.watch needs partitions: its sensor requests the new ones. Remove watch, or add partitions"
            )
        return self

    def closes_at(self, key: str) -> datetime | None:
        """Return the moment (UTC) from which the source holds all rows of partition `key`; None without partitions."""
        end = self.cadence.end_of(key, self.contract.event_time_zone)
        return None if end is None else end + self.source.complete_after

    def require_closed(self, key: str, now: datetime | None = None) -> None:
        """Raise `PartitionOpen` if `key` still gets rows at `now`; default: at this moment."""
        closes = self.closes_at(key)
        if closes is None or (now or datetime.now(UTC)) >= closes:
            return
        late = self.source.complete_after
        waits = f" The source may be late by {late} (source.complete_after_hours)." if late else ""
        raise PartitionOpen(
            f"datasets/{self.name} {key} has not ended, so rows may still come: in {self.contract.event_time_zone} it "
            f"ends at {(closes - late).isoformat()}.{waits} Materialize it from {closes.isoformat()} on"
        )

    @property
    def source_table(self) -> SourceTable:
        """Facts of the table for the reader of its source."""
        return SourceTable(
            name=f"datasets/{self.name}",
            contract=self.contract,
            start=self.cadence.start,
            is_hourly=self.cadence.kind == "hourly",
        )


class InputSection(Section):
    """A table that a feature function reads."""

    table: str = Field(pattern=r"^(datasets|features)/\w+$")
    """`datasets/<name>` or `features/<name>`."""
    cadence: Literal["hourly", "daily", "weekly", "monthly", "quarterly"] | None = None
    """Cadence of the input, if it is not that of this table. A shorter one, such as `daily` for a weekly table: the
    table reads the days of its partition. A longer one, such as `weekly` for a daily table or `daily` for an hourly
    one: it reads the partition before that of its day, which is over."""
    lookback: Partitions | Literal["all"] = 0
    """Number of partitions to read before: of the input, or of this table if the input's `cadence` is shorter; `all`
    for a table without partitions."""
    known_at: tuple[KnowledgeRule, ...] | None = None
    """Rules for the moment at which its facts became known. The leakage test hides facts by these rules. `[]`: all
    facts were always known."""


class OnlineSection(Section):
    """Asset `features/<name>/online`, which stores the newest row of each entity for requests."""

    entity: tuple[str, ...] = Field(min_length=1)
    """Columns that name an entity, such as a customer: texts, whole numbers, booleans or dates."""
    ttl_hours: Hours | None = None
    """Hours after `predicted_at` until a row is no longer returned. Not given: until a newer one comes."""
    automation_condition: Literal["none", "on_valid_inputs"] = "none"
    """`on_valid_inputs`: store a partition when it was materialized and its blocking checks passed."""


class FeatureTableSpec(TableSpecSection):
    """A table computed from other tables."""

    function: VersionedPath
    """`package.module.function`: `(inputs: Mapping[str, DataFrame], first: date, last: date) -> DataFrame`. For hourly
    partitions, `first` and `last` are datetimes (UTC): the start of the first and of the last hour."""
    inputs: tuple[InputSection, ...] = Field(min_length=1)
    """Tables that the function reads."""
    predicted_at: str = "predicted_at"
    """Column with the moment of the prediction (UTC). A row may use only facts that were known by then."""
    partition_date: str = "partition_date"
    """Column with the first day of a row's partition; of type datetime for hourly partitions, the start of the hour."""
    labels: tuple[str, ...] = ()
    """Columns that become known after `predicted_at`. The leakage test leaves them out."""
    leakage_check: LeakageCheck = "weekly"
    """`weekly`: the leakage test runs on the newest 28 partitions each week, and when the code changes; the table's
    page shows its result. `off`: only `ml-assets leaktest` runs it."""
    online: OnlineSection | None = None
    """Columns of an entity whose newest row is kept for requests. Not given: nothing is stored online."""

    @model_validator(mode="after")
    def _is_dated(self) -> Self:
        if self.partitions is None:
            raise ValueError("a feature table needs `partitions`: give it the cadence of its inputs")
        return self

    @model_validator(mode="after")
    def _columns_are_in_the_contract(self) -> Self:
        why: dict[tuple[str | int, ...], str] = {}
        dated = {
            "predicted_at": (self.predicted_at, "datetime"),
            "partition_date": (self.partition_date, "datetime" if self.cadence.kind == "hourly" else "date"),
        }
        for key, column in (
            *((key, column) for key, (column, _) in dated.items()),
            *(("labels", label) for label in self.labels),
        ):
            if column not in self.contract.by_name:
                why[self._written(key)] = (
                    f"{key} '{column}' is not a column of the contract{did_you_mean(column, self.contract.names)}"
                )
        for key, (column, dtype) in dated.items():
            declared = self.contract.by_name.get(column)
            if declared is not None and (declared.dtype != dtype or declared.nullable):
                why[self._written(key)] = (
                    f"{key} '{column}' must be a {dtype} and never null, and is a {'nullable ' * declared.nullable}"
                    f"{declared.dtype} by the contract"
                )
        refuse_at(type(self).__name__, why)
        return self

    @model_validator(mode="after")
    def _online_rows_can_be_kept(self) -> Self:
        if self.online is None:
            return self
        why: dict[tuple[str | int, ...], str] = {}
        for place, name in enumerate(self.online.entity):
            column = self.contract.by_name.get(name)
            if column is None:
                hint = did_you_mean(name, self.contract.names)
                why["online", "entity", place] = f"entity '{name}' is not a column of the contract{hint}"
            elif name in self.labels or column.dtype not in ENTITY_TYPES:
                what = "a label" if name in self.labels else f"a {column.dtype}"
                why["online", "entity", place] = (
                    f"entity '{name}' is {what}: an entity is named by texts, whole numbers, booleans or dates "
                    "that are known when the model predicts"
                )
        strange = [name for name, dtype in self.online_table.columns if dtype not in KEPT_TYPES]
        if strange:
            why["online",] = (
                f"column '{strange[0]}' is a {self.contract.by_name[strange[0]].dtype}, which an online store does not "
                "keep: leave out `online`, or return another type from the feature function"
            )
        refuse_at(type(self).__name__, why)
        return self

    @property
    def online_table(self) -> OnlineTable:
        """Return the declaration of the rows that are online. Raises `NothingOnline` without `online`."""
        if self.online is None:
            raise NothingOnline(
                f"features/{self.name} declares no `online`: add `online: {{entity: [COLUMN, …]}}` to its defs.yaml"
            )
        hours = self.online.ttl_hours
        return OnlineTable(
            table=f"features/{self.name}",
            entity=self.online.entity,
            event_at=self.predicted_at,
            ttl=None if hours is None else timedelta(hours=hours),
            columns=tuple(one for one in self.contract.stored_schema if one[0] not in self.labels),
        )

    def _written(self, key: str) -> tuple[str]:
        """Return the place of a fault of `key`: the contract if the file does not set the key."""
        return (key if key in self.model_fields_set else "contract",)

    @property
    def input_columns(self) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """Input table → dotted key that names columns of it → the columns."""
        named: dict[str, dict[str, tuple[str, ...]]] = {}
        for i, section in enumerate(self.inputs):
            for j, rule in enumerate(section.known_at or ()):
                key = f"inputs.{i}.known_at.{j}"
                named.setdefault(section.table, {}).update(
                    {f"{key}.column": (rule.column,), f"{key}.columns": rule.columns}
                )
        return named


class ScheduleSection(Section):
    """Schedule of trainings."""

    cron: Cron
    """Moments at which it runs: minute, hour, day of the month, month, day of the week."""
    time_zone: TimeZone = "UTC"
    """Time zone of `cron`."""
    latest: FunctionPath
    """`package.module.function`: `() -> date`. The schedule materializes that day's partition of the model and of its
    upstream tables, unless the model is trained. Upstream tables need the model's partitions, or none."""
    enabled: bool = False
    """Run the schedule without switching it on in the UI."""


class ScoringSection(Section):
    """Batch scoring: the table `<model>/predictions`, made by the version in production, and its measurement,
    `<model>/live`."""

    volume: VolumeSection = VolumeRule()
    """Allowed deviation from the usual number of rows; `off`: any number passes."""
    automation_condition: Literal["none", "on_valid_inputs"] = "none"
    """`on_valid_inputs`: score and measure a partition when its features changed, such as by labels, and their blocking
    checks passed."""
    live_source: LiveSource = "predictions"
    """Predictions that `<model>/live` measures: those of the table, or with `request_log` the answers of
    `ml-assets serve` to requests that arrived in the partition."""
    retrain: RetrainSection | None = None
    """Limits of live performance; a sensor requests a training when one is broken. Not given: it requests none."""


class TrainingPipelineSpec(PipelineSpec):
    """A model, from features to the registry, and how Dagster shows and starts it."""

    group_name: Name = "default"
    """Group on the lineage page: the tables and models of one folder usually share one."""
    owners: tuple[Owner, ...] = Field(default=(), examples=[["team:planning"]])
    """Owners on the asset pages: e-mail addresses, or `team:name`."""
    freshness: FreshnessSection | None = None
    """Greatest age of the newest materialization; not given: any."""
    schedule: ScheduleSection | None = None
    """Schedule that trains the model. Not given: none."""
    automation_condition: Literal["none", "on_valid_inputs"] = "none"
    """`on_valid_inputs`: materialize when upstream changed and its blocking checks passed."""
    scoring: ScoringSection | None = None
    """Batch scoring of the feature table by the version in production; `{}`: with the defaults. Not given: none."""

    skew: SkewRule | None = None
    """Comparison of the newest features with those that the version in production was trained on. Not given: none."""
    served_skew: ServedSkewRule | None = None
    """Comparison of each partition's requests with the feature table, as soon as it holds the partition; `{}`: no input
    may differ. Not given: only by `ml-assets skew`."""

    @model_validator(mode="after")
    def _skew_is_about_inputs(self) -> Self:
        why: dict[tuple[str | int, ...], str] = {}
        inputs = (*self.features.numeric, *self.features.categorical)
        for section, rule in (("skew", self.skew), ("served_skew", self.served_skew)):
            if rule is None:
                continue
            for path, name in [
                *(((section, "columns", name), name) for name in rule.columns),
                *(((section, "ignore", place), name) for place, name in enumerate(rule.ignore)),
            ]:
                if name not in inputs:
                    why[path] = f"'{name}' is not an input of the model{did_you_mean(name, inputs)}"
        if self.skew is not None and self.skew.partitions * LEAST_BLOCKS > self.window.total:
            why["skew", "partitions"] = (
                f"{self.skew.partitions} are compared with blocks as long, and the window of {self.window.total} "
                f"partitions has fewer than {LEAST_BLOCKS} of them: write {max(1, self.window.total // LEAST_BLOCKS)}"
            )
        refuse_at(type(self).__name__, why)
        return self

    @model_validator(mode="after")
    def _scoring_fits_the_model(self) -> Self:
        if self.scoring is None:
            return self
        why: dict[tuple[str | int, ...], str] = {}
        try:
            check_table(f"{self.name}/{PREDICTIONS}")
        except TableNameRefused as refused:
            why["name",] = f"{refused}, because `scoring` makes a table of this name"
        if taken := [name for name in self.features.primary_key if name in ADDED]:
            why["scoring",] = (
                f"'{taken[0]}' is in features.primary_key, but the table of predictions has a column of its own of "
                "this name: rename it in the feature table"
            )
        if self.scoring.retrain is not None:
            own = [one.facts for one in self.evaluation.metrics]
            known = [*metrics_of(self.evaluation.objective), *own]
            why |= dict(rule_faults(self.scoring.retrain, known, has_skew=self.skew is not None))
        refuse_at(type(self).__name__, why)
        return self

    @field_validator("name")
    @classmethod
    def _is_no_word_of_dagster(cls, name: str) -> str:
        if name in DISALLOWED_NAMES:
            raise ValueError(f"'{name}' is a word that Dagster reserves: give the model another name")
        return name
