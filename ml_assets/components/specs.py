"""Vocabulary of `defs.yaml`, as strict pydantic sections.

Each component takes one of the specs at the bottom. Values only: nothing here makes Dagster objects or runs
anything, so the CLI and the tests read the same vocabulary.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Literal, Self

from dagster._core.definitions.utils import DISALLOWED_NAMES, is_valid_owner
from dagster._utils.schedules import is_valid_cron_schedule
from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, field_validator, model_validator

from ml_assets.components.imports import (
    ColumnNames,
    FunctionPath,
    ModulePath,
    StandalonePath,
    VersionedPath,
)
from ml_assets.components.model_functions import ModelFunctionPath, wrong_arguments
from ml_assets.components.one_process import one_process_library
from ml_assets.evaluation.spec import EvaluationSpec
from ml_assets.features.leaktest import KnowledgeRule
from ml_assets.sections import Name, Partitions, Section, Seed, TimeZone, refuse_at, refuse_unknown_keys
from ml_assets.tables.cadence import Cadence, KeyRefused
from ml_assets.validation.contract import Contract
from ml_assets.validation.volume import VolumeRule, VolumeSection
from resources.job.training_settings import OF_SCRIPTS, Parallel, TrainingSettings
from resources.launcher.profile import ProfileRefused, ResourceProfile, ranks_of_a_node
from resources.words import did_you_mean


def _must_be_an_owner(text: str) -> str:
    if not is_valid_owner(text):
        raise ValueError(f"'{text}' is no owner: write an address of mail, or team:NAME")
    return text


Owner = Annotated[str, AfterValidator(_must_be_an_owner)]
"""An address of mail, or `team:` and a name."""

Hours = Annotated[float, Field(ge=1 / 60, le=24 * 36_525)]
"""A minute, which is Dagster's least, to a century."""


def _must_be_cron(text: str) -> str:
    if not is_valid_cron_schedule(text):
        raise ValueError(
            f"'{text}' is no cron schedule: write five fields, such as '0 3 * * *' for each day at 3:00"
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
"""Rhythm in which the leakage test runs by itself."""


class PartitionsSection(Section):
    """Partitions of a table or model, by date."""

    cadence: Literal["daily", "weekly"]
    """`daily`: a partition is a day. `weekly`: it is named by its Monday."""
    start: date
    """First day. A weekly table begins on a Monday."""
    end: date | None = None
    """Last day; open if not given."""

    @model_validator(mode="after")
    def _starts_before_it_ends(self) -> Self:
        if self.end is not None and self.end < self.start:
            raise ValueError(f"start {self.start} is after end {self.end}: exchange them")
        return self

    @property
    def as_cadence(self) -> Cadence:
        """The arithmetic of these partitions."""
        return Cadence(self.cadence, self.start, self.end)


class WatchSection(Section):
    """A sensor that asks a source what is new."""

    every_seconds: int = Field(default=60, ge=5)
    """Seconds between two questions to the source."""
    retry_seconds: int = Field(default=3600, ge=5)
    """Wait before a partition that failed, was rejected or is missing is requested again."""
    enabled: bool = False
    """Run the sensor without switching it on in the UI."""


class SourceSection(Section):
    """Source of a dataset."""

    function: VersionedPath
    """`package.module.function`: `(first_day: date) -> polars.DataFrame`, one partition a call; without
    partitions `() -> polars.DataFrame`."""
    newest: FunctionPath | None = None
    """`package.module.function`: `() -> date`, the newest day the source has; a sensor asks it."""
    watch: WatchSection | None = None
    """Ask the source by itself and ingest what is new."""


class FreshnessSection(Section):
    """Greatest age of the newest materialization."""

    fail_after_hours: Hours
    """Hours after which the freshness check fails."""
    warn_after_hours: Hours | None = None
    """Hours after which it warns; not given: it never warns."""

    @model_validator(mode="after")
    def _warns_first(self) -> Self:
        if self.warn_after_hours is not None and self.warn_after_hours >= self.fail_after_hours:
            raise ValueError(
                f"warn_after_hours {self.warn_after_hours:g} is not before fail_after_hours {self.fail_after_hours:g}"
            )
        return self


class TableSpecSection(Section):
    """Common part of datasets and feature tables."""

    name: Name
    """Name of the table, without `datasets/` or `features/`."""
    group: Name = "default"
    """Group on the lineage page: the tables and models of one folder usually share one."""
    description: str = ""
    """Text for the asset page."""
    owners: tuple[Owner, ...] = ()
    """Owners on the asset page: e-mail addresses, or `team:name`."""
    contract: Contract
    """Columns, types and rules that each partition has to keep."""
    volume: VolumeSection = VolumeRule()
    """Allowed distance of the number of rows from the usual one; `off`: any number passes."""
    freshness: FreshnessSection | None = None
    """Greatest age of the newest materialization; not given: any."""
    automation: Literal["none", "on_valid_inputs"] = "none"
    """`on_valid_inputs`: materialize when upstream changed and its blocking checks passed."""
    partitions: PartitionsSection | None = None
    """Not given: one partition, the whole table."""

    @property
    def cadence(self) -> Cadence:
        """The arithmetic of the partitions, also for a table without."""
        return self.partitions.as_cadence if self.partitions else Cadence("none")


class DatasetSpec(TableSpecSection):
    """A table that comes from a source."""

    source: SourceSection
    """Source of its rows."""

    @model_validator(mode="after")
    def _watch_needs_newest(self) -> Self:
        if self.source.watch is not None and self.source.newest is None:
            raise ValueError("source.watch needs source.newest: the function that names the newest day")
        if self.source.watch is not None and self.partitions is None:
            raise ValueError(
                "source.watch needs partitions: it requests those that came since, and a table without partitions has "
                "none. Leave watch out, or add partitions"
            )
        return self


class InputSection(Section):
    """A table a feature function reads."""

    table: str = Field(pattern=r"^(datasets|features)/\w+$")
    """`datasets/<name>` or `features/<name>`, of the same cadence or without partitions."""
    lookback: Partitions | Literal["whole"] = 0
    """Partitions before the one being built; `whole` for a table without partitions."""
    known: tuple[KnowledgeRule, ...] | None = None
    """Rules for the moment at which its facts became known: the leakage test cuts by them. `[]`: they always were
    known.
    """


class FeatureTableSpec(TableSpecSection):
    """A table computed from other tables."""

    function: VersionedPath
    """`package.module.function`: `(inputs: Mapping[str, DataFrame], first: date, last: date) -> DataFrame`."""
    inputs: tuple[InputSection, ...] = Field(min_length=1)
    """Tables that the function reads."""
    predicted_at: str = "predicted_at"
    """Column with the moment (UTC) whose knowledge a row may use."""
    partition_date: str = "partition_date"
    """Column with the first day of a row's partition."""
    labels: tuple[str, ...] = ()
    """Columns that become known later than `predicted_at`: left out of the leakage test."""
    leakage_check: LeakageCheck = "weekly"
    """`weekly`: the leakage test runs on the newest 28 partitions each week, and when the code changes; its verdict
    stands on the table's page. `off`: only `ml-assets leaktest` makes it."""

    @model_validator(mode="after")
    def _is_dated(self) -> Self:
        if self.partitions is None:
            raise ValueError("a feature table needs `partitions`, of the cadence of its inputs")
        return self

    @model_validator(mode="after")
    def _columns_are_in_the_contract(self) -> Self:
        why: dict[tuple[str | int, ...], str] = {}
        dated = {
            "predicted_at": (self.predicted_at, "datetime"),
            "partition_date": (self.partition_date, "date"),
        }
        for key, column in (
            *((key, column) for key, (column, _) in dated.items()),
            *(("labels", label) for label in self.labels),
        ):
            if column not in self.contract.by_name:
                why[self._written(key)] = (
                    f"{key} '{column}' is no column of the contract{did_you_mean(column, self.contract.names)}"
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

    def _written(self, key: str) -> tuple[str]:
        """Return the place for a fault of `key`: the contract, where the key holds its default."""
        return (key if key in self.model_fields_set else "contract",)

    @property
    def input_columns(self) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """Input table → keys that name columns of it → the columns."""
        named: dict[str, dict[str, tuple[str, ...]]] = {}
        for i, section in enumerate(self.inputs):
            for j, rule in enumerate(section.known or ()):
                key = f"inputs.{i}.known.{j}"
                named.setdefault(section.table, {}).update(
                    {f"{key}.at": (rule.at,), f"{key}.hides": rule.hides}
                )
        return named


class WindowSection(Section):
    """Partitions of each split, counted back from the model's partition, the last one included."""

    train: Annotated[Partitions, Field(ge=1)]
    """Partitions of the training rows."""
    validation: Annotated[Partitions, Field(ge=1)]
    """Partitions of the validation rows, after those of training."""
    holdout: Annotated[Partitions, Field(ge=1)]
    """Partitions of the holdout rows, the newest."""
    embargo: Partitions = 0
    """Partitions between the last moment at which a label may have become known and the start of the next split: rows
    labelled later are left out. 0: labels known when the next split begins."""

    @property
    def total(self) -> int:
        """Partitions a snapshot reads."""
        return self.train + self.validation + self.holdout


class SampleSection(Section):
    """The sample of a row: an image, a sound, a text."""

    column: str
    """Column of type `binary` with the stored bytes; rows where it is null are left out."""
    decode: StandalonePath
    """`package.module.function`: `(content: bytes) -> array`, of one shape and type for all rows. It goes with the
    model, so it needs nothing of the project but what stands in its own module."""


class ModelInputsSection(Section):
    """Columns of the feature table that the model reads."""

    table: str = Field(pattern=r"^features/\w+$")
    """Feature table, `features/name`."""
    numeric: ColumnNames = ()
    """Columns with numbers, or the import path of a list of them."""
    categorical: ColumnNames = ()
    """Columns with categories, or the import path of a list of them."""
    min_count: int = Field(default=1, ge=1)
    """A category seen less often in the training rows counts as unknown."""
    sample: SampleSection | None = None
    """Bytes that the model gets besides numbers and categories; not given: none."""
    partition_date: str = "partition_date"
    """Column with the first day of a row's partition."""
    label: str
    """Column that the model predicts."""
    label_known_at: str
    """Column with the moment (UTC) the label became known. A row is left out where that is later than the start of the
    next split, or in the holdout later than its end."""
    time_zone: TimeZone = "UTC"
    """Time zone in whose midnight a partition begins and ends."""
    row_key: tuple[str, ...]
    """Columns that name a row."""

    @model_validator(mode="after")
    def _inputs_are_known_and_named_once(self) -> Self:
        sample = (self.sample.column,) if self.sample else ()
        why: dict[tuple[str | int, ...], str] = {}
        for key, path, columns in (
            ("numeric", ("numeric",), self.numeric),
            ("categorical", ("categorical",), self.categorical),
            ("sample.column", ("sample", "column"), sample),
        ):
            twice = [name for name, times in Counter(columns).items() if times > 1]
            if twice:
                why[path] = f"'{twice[0]}' is listed twice: a model reads a column once"
            for name in columns:
                if name in (self.label, self.label_known_at):
                    role = "the label" if name == self.label else "the label's label_known_at"
                    why[path] = (
                        f"'{name}' is {role}, which nobody knows when the model is asked: take it out of {key}"
                    )
        if sample and not why and sample[0] in (*self.numeric, *self.categorical):
            why["sample", "column"] = (
                f"'{sample[0]}' is listed in numeric or categorical, too: a sample is bytes"
            )
        refuse_at(type(self).__name__, why)
        return self


class ModelSection(Section):
    """Model function or script that is trained."""

    function: ModelFunctionPath | None = None
    """`package.module.function`: `(inputs: InputSpec, **hyperparameters) -> torch.nn.Module`, trained by the platform's
    loop."""
    entry: ModulePath | None = None
    """Instead of `function`: `package.module` of a script with a loop of its own, which each worker runs as torchrun
    would. `arguments` and `hyperparameters` are its command line."""
    arguments: tuple[str | int | float, ...] = ()
    """Positional arguments of `entry`, in order; they stand before the options that `hyperparameters` become."""
    hyperparameters: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of `function`, or the command line of `entry`."""
    init_from: str | None = Field(default=None, pattern=r"^\w+(@[\w-]+|/\d+)$")
    """`model@alias` or `model/number`: begin with the weights of that registered version, and encode columns as it
    does. Which one an alias means is decided when the training is launched, and part of its fingerprint."""

    @model_validator(mode="after")
    def _is_function_or_script(self) -> Self:
        if (self.function is None) == (self.entry is None):
            raise ValueError(
                "give either function, whose model the platform's loop trains, or entry, a script with its own loop"
            )
        if self.entry and self.init_from:
            raise ValueError(
                "init_from is for a model function: a script begins with the weights it loads itself"
            )
        if self.arguments and not self.entry:
            raise ValueError(
                "arguments are for a script, entry: a model function takes hyperparameters, by their names"
            )
        if self.function is not None:
            why = wrong_arguments(self.function, self.hyperparameters)
            refuse_at(
                type(self).__name__,
                {("hyperparameters", *path): f"{self.function} {said}" for path, said in why.items()},
            )
        return self


class ResourcesSection(ResourceProfile):
    """Resources of the workers where trainings run on a cluster; processes of one machine share the machine."""

    partitions: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Partition key → the fields that are different there."""

    @model_validator(mode="before")
    @classmethod
    def _name_typos(cls, value: Any) -> Any:
        refuse_unknown_keys("resources", value, cls.model_fields)
        return value

    @model_validator(mode="after")
    def _partitions_are_profiles(self) -> Self:
        for key in self.partitions:
            self.of(key)
        return self

    def of(self, partition: str, changes: Mapping[str, Any] | None = None) -> ResourceProfile:
        """The profile of one partition, and of one launch that `changes` some fields. `ProfileRefused`."""
        common = ResourceProfile(**self.model_dump(exclude={"partitions"}))
        return common.changed(self.partitions.get(partition, {})).changed(changes or {})


class ScheduleSection(Section):
    """Schedule of trainings."""

    cron: Cron
    """Moments of the tick: minute, hour, day of the month, month, day of the week."""
    time_zone: TimeZone = "UTC"
    """Time zone of `cron`."""
    newest: FunctionPath
    """`package.module.function`: `() -> date`; the tick trains that day's partition, tables and all, and skips if
    it is trained. Needs tables upstream that have the model's partitions or none."""
    enabled: bool = False
    """Run the schedule without switching it on in the UI."""


class TrainingPipelineSpec(Section):
    """A model, from features to the registry."""

    name: Name
    """Name of the model."""
    group: Name = "default"
    """Group on the lineage page: the tables and models of one folder usually share one."""
    description: str = ""
    """Text for the asset pages."""
    owners: tuple[Owner, ...] = ()
    """Owners on the asset pages: e-mail addresses, or `team:name`."""
    partitions: PartitionsSection
    """Partitions of the model: those of its feature table."""
    features: ModelInputsSection
    """Columns of the feature table that the model reads, and its label."""
    window: WindowSection
    """Partitions of the training, validation and holdout rows."""
    model: ModelSection
    """Model function or script."""
    training: TrainingSettings = TrainingSettings()
    """Settings of the training."""
    resources: ResourcesSection = ResourcesSection()
    """Resources of the workers on a cluster. They change no weights: no part of a training's fingerprint."""
    seed: Seed = 0
    """Seed of weights, row order and dropout: another one is another training."""
    evaluation: EvaluationSpec
    """Metrics, slices and gates."""
    stale: Literal["warn", "refuse"] = "warn"
    """Inputs whose own inputs changed since: `warn` trains on them as main holds them, `refuse` does not."""
    freshness: FreshnessSection | None = None
    """Greatest age of the newest materialization; not given: any."""
    schedule: ScheduleSection | None = None
    """Trainings by the clock; not given: none."""
    automation: Literal["none", "on_valid_inputs"] = "none"
    """`on_valid_inputs`: materialize when upstream changed and its blocking checks passed."""

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """Keys that name columns of the feature table → the columns."""
        seen, judged = self.features, self.evaluation
        return {
            "features.numeric": seen.numeric,
            "features.categorical": seen.categorical,
            "features.sample.column": (seen.sample.column,) if seen.sample else (),
            "features.partition_date": (seen.partition_date,),
            "features.label": (seen.label,),
            "features.label_known_at": (seen.label_known_at,),
            "features.row_key": seen.row_key,
            "evaluation.block": (judged.block,),
            "evaluation.slices": tuple(one.column for one in judged.sliced_by),
            "evaluation.baseline.groups": judged.baseline.groups,
        }

    @field_validator("training", mode="before")
    @classmethod
    def _name_typos_of_settings(cls, value: Any) -> Any:
        refuse_unknown_keys("training", value, TrainingSettings.__dataclass_fields__)
        if isinstance(value, dict):
            refuse_unknown_keys("training.parallel", value.get("parallel"), Parallel.__dataclass_fields__)
        return value

    @field_validator("name")
    @classmethod
    def _is_no_folder_of_tables(cls, name: str) -> str:
        if name in ("datasets", "features"):
            raise ValueError(f"'{name}' stands before the names of tables: give the model another name")
        if name in DISALLOWED_NAMES:
            raise ValueError(f"'{name}' is a word that Dagster keeps to itself: give the model another name")
        return name

    @model_validator(mode="after")
    def _resources_are_of_partitions(self) -> Self:
        cadence = self.partitions.as_cadence
        why: dict[tuple[str | int, ...], str] = {}
        for key in self.resources.partitions:
            try:
                cadence.bounds(key)
            except KeyRefused as error:
                why["resources", "partitions", key] = str(error)
        refuse_at(type(self).__name__, why)
        return self

    @model_validator(mode="after")
    def _scripts_have_their_own_loop(self) -> Self:
        default = TrainingSettings()
        for name in TrainingSettings.__dataclass_fields__ if self.model.entry else ():
            if name not in OF_SCRIPTS and getattr(self.training, name) != getattr(default, name):
                raise ValueError(
                    f"training.{name} is about the platform's loop, and {self.model.entry} has its own: say it in "
                    f"model.hyperparameters, which are its command line. Of training it takes {', '.join(OF_SCRIPTS)}"
                )
        return self

    @model_validator(mode="after")
    def _workers_of_a_script_share_its_work(self) -> Self:
        workers, entry = self.training.workers, self.model.entry
        library = one_process_library(entry) if entry and workers > 1 else None
        if library is not None:
            said = (
                f"{workers} workers would each train the same model: {entry} trains with {library} in one process, and "
                "nothing in it tells workers apart or joins them (torch.distributed, training.rank). Say workers: 1; "
                f"{library} takes the machine's cores by its own number of threads"
            )
            refuse_at(type(self).__name__, {("training", "workers"): said})
        return self

    @model_validator(mode="after")
    def _workers_fill_the_nodes(self) -> Self:
        why: dict[tuple[str | int, ...], str] = {}
        for key in ("", *self.resources.partitions):
            try:
                ranks_of_a_node(self.training, self.resources.of(key))
            except ProfileRefused as error:
                why["resources", *(("partitions", key) if key else ())] = str(error)
        refuse_at(type(self).__name__, why)
        return self
