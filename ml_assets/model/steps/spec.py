"""Declaration of a model: everything that decides its rows, its training and its gates.

Values only: the sections of a training pipeline's `defs.yaml` that the steps of `ml_assets.model.steps` read. Not here:
sections that only Dagster reads, such as groups, schedules and automation (`components.specs`).
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, cast, get_args

from pydantic import (
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from ml_assets.data.snapshots.columns import columns_read
from ml_assets.data.tables.cadence import KeyRefused, PartitionsSection
from ml_assets.data.tables.user_code import ColumnNames, StandalonePath
from ml_assets.foundation.days import Days
from ml_assets.foundation.objective_facts import facts_of
from ml_assets.foundation.sections import (
    Name,
    Partitions,
    Section,
    Seed,
    TimeZone,
    refuse_at,
    refuse_unknown_keys,
)
from ml_assets.model.evaluation.metrics.metrics import SERVING_NAMES
from ml_assets.model.evaluation.report_document import CardSection
from ml_assets.model.evaluation.spec import EvaluationSpec, Gate
from ml_assets.model.release.rules import OF_REQUESTS, ReleaseSection, Rules, WatchedMetric
from ml_assets.model.release.standing import CANARY, PRODUCTION
from ml_assets.model.steps.declared_functions import (
    ModelSection,
    one_process_library,
    own_metric_faults,
    wrong_arguments,
)
from ml_assets.model.steps.search_space import (
    SEARCHED_SETTINGS,
    VALIDATION_LOSS,
    Choice,
    TuningSection,
    probes,
)
from resources.job.training_settings import OF_SCRIPTS, AverageSettings, Parallel, TrainingSettings
from resources.launcher.resource_profile import ProfileRefused, ResourceProfile, ranks_of_a_node
from resources.words import did_you_mean

PREDICTIONS = "predictions"
"""Last part of the id of a model's table of predictions, `<model>/predictions`."""
ADDED = (
    "output",
    "prediction",
    "version",
    "bundle_digest",
    "canary_prediction",
    "canary_version",
    "canary_bundle_digest",
)
"""Columns of that table behind the primary key."""


class WindowSection(Section):
    """Partitions of each split, counted back from the model's partition, the last one included."""

    train: Annotated[Partitions, Field(ge=1)]
    """Partitions of the training rows."""
    validation: Annotated[Partitions, Field(ge=1)]
    """Partitions of the validation rows, after those of training."""
    holdout: Annotated[Partitions, Field(ge=1)]
    """Partitions of the holdout rows, the newest."""
    embargo: Partitions = 0
    """Partitions between a split's cutoff and the start of the next split. A row whose label became known after the
    cutoff is left out. 0: the cutoff is the start of the next split."""

    @property
    def total(self) -> int:
        """Number of partitions that a snapshot reads."""
        return self.train + self.validation + self.holdout


class BlobSection(Section):
    """Blob of a row: an image, a sound, a text."""

    column: str
    """Column of type `binary` with the stored bytes. Rows with null are left out."""
    decode: StandalonePath
    """`package.module.function`: `(content: bytes) -> array`, of one shape and dtype for all rows. It is stored with
    the model, so it may use no code of the project outside its own module."""
    vocabulary: int | None = Field(default=None, ge=2, le=2_097_151)
    """Number of token ids, for objective `next_token` alone: `decode` returns ids from 0 to `vocabulary` - 1, `[T]`
    int64, and -1 behind the last token of a short text. The model reads it as `inputs.outputs`. At most
    2,097,151, so that the reference can count three tokens in a row."""


class ModelInputsSection(Section):
    """Columns of the feature table that the model reads."""

    table: str = Field(pattern=r"^features/\w+$")
    """Feature table, `features/name`."""
    numeric: ColumnNames = ()
    """Columns with numbers, or the import path of a list of them."""
    categorical: ColumnNames = ()
    """Columns with categories, or the import path of a list of them."""
    min_count: int = Field(default=1, ge=1)
    """Smallest number of training rows of a category. A rarer category counts as unknown."""
    blob: BlobSection | None = None
    """Bytes that the model reads in addition to numbers and categories. Not given: none."""
    partition_date: str = "partition_date"
    """Column with the first day of a row's partition."""
    label: str
    """Column that the model predicts."""
    label_known_at: str
    """Column with the time (UTC) at which the label became known. A row is left out if that is later than the start of
    the next split, or for the holdout later than its end."""
    weight: str | None = None
    """Column with the weight of each row, a number from 0: a row of weight 2 counts as two rows in the loss, in every
    metric and in the models of comparison, and a row of weight 0 is left out. Only ratios count. The model does not
    read it. Not given: each row counts once."""
    time_zone: TimeZone = "UTC"
    """Time zone whose midnight begins and ends a partition: the `event_time_zone` of the tables, refused otherwise."""
    primary_key: tuple[str, ...]
    """Columns that together name a row."""

    @model_validator(mode="after")
    def _inputs_are_known_and_named_once(self) -> Self:
        blob = (self.blob.column,) if self.blob else ()
        unknown = {
            self.label: "the label, which is unknown when the model predicts",
            self.label_known_at: "the label's label_known_at, which is unknown when the model predicts",
            self.weight: "the weight of a row (features.weight), which a model does not read",
        }
        why: dict[tuple[str | int, ...], str] = {}
        for key, path, columns in (
            ("numeric", ("numeric",), self.numeric),
            ("categorical", ("categorical",), self.categorical),
            ("blob.column", ("blob", "column"), blob),
        ):
            twice = [name for name, times in Counter(columns).items() if times > 1]
            if twice:
                why[path] = f"'{twice[0]}' is listed twice: a model reads a column once"
            for name in columns:
                if name in unknown:
                    why[path] = f"'{name}' is {unknown[name]}: remove it from {key}"
        if blob and not why and blob[0] in (*self.numeric, *self.categorical):
            why["blob", "column"] = (
                f"'{blob[0]}' is also listed in numeric or categorical, but a blob is bytes: remove it there"
            )
        refuse_at(type(self).__name__, why)
        return self


class ResourcesSection(ResourceProfile):
    """Resources of the workers on a cluster; processes on a single machine share the machine."""

    partitions: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Partition key → fields with other values for that partition."""

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
        """Return the profile of one partition, with `changes` for one launch. Raises `ProfileRefused`."""
        common = ResourceProfile(**self.model_dump(exclude={"partitions"}))
        return common.changed(self.partitions.get(partition, {})).changed(changes or {})


class PipelineSpec(Section):
    """Declaration of a model, from features to the registry."""

    name: Name
    """Name of the model."""
    description: str = Field(default="", examples=["Will a flight be late?"])
    """Text for the asset pages."""
    partitions: PartitionsSection
    """Partitions of the model: the same as its feature table's."""
    features: ModelInputsSection
    """Columns of the feature table that the model reads, and its label."""
    window: WindowSection
    """Partitions of the training, validation and holdout rows."""
    model: ModelSection
    """Model function or script."""
    training: TrainingSettings = TrainingSettings()
    """Settings of the training."""
    resources: ResourcesSection = ResourcesSection()
    """Resources of the workers on a cluster. They do not change weights, so they are not part of the fingerprint."""
    seed: Seed = 0
    """Seed of weights, row order and dropout. Another seed is another training."""
    evaluation: EvaluationSpec
    """Metrics, slices and gates."""
    card: CardSection = CardSection()
    """Intended use and known limits, for the model card."""
    release: ReleaseSection = ReleaseSection()
    """Rules for promotions, in addition to the gates."""
    tuning: TuningSection | None = None
    """Study that chooses values of `model.hyperparameters` and `training`. Not given: the declared values are used."""
    on_stale_inputs: Literal["warn", "refuse"] = "warn"
    """Treatment of stale inputs, whose own inputs changed since: `warn` trains on main's content, `refuse` does not."""

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """Return keys that name columns of the feature table → the columns."""
        seen, measured = self.features, self.evaluation
        return {
            "features.numeric": seen.numeric,
            "features.categorical": seen.categorical,
            "features.blob.column": (seen.blob.column,) if seen.blob else (),
            "features.partition_date": (seen.partition_date,),
            "features.label": (seen.label,),
            "features.label_known_at": (seen.label_known_at,),
            "features.weight": (seen.weight,) if seen.weight is not None else (),
            "features.primary_key": seen.primary_key,
            "evaluation.bootstrap_unit": (measured.bootstrap_unit,),
            "evaluation.group": (measured.group,) if measured.group is not None else (),
            "evaluation.slices": tuple(one.column for one in measured.sliced_by),
            "evaluation.baseline.groups": measured.baseline.groups,
            "evaluation.baseline.entity": measured.baseline.entity or (),
            "evaluation.baseline.predicted_at": (
                () if measured.baseline.entity is None else (measured.baseline.predicted_at,)
            ),
            "evaluation.metrics": tuple(one.group for one in measured.metrics if one.group is not None),
            "evaluation.bias": tuple(one.column for one in measured.bias),
            "release.canary.by": self.release.canary.by if self.release.canary else (),
        }

    @property
    def training_columns(self) -> tuple[str, ...]:
        """Columns of the feature table that a training reads, sorted: its inputs, and those that choose, label, weight
        or group its rows. A change of any other column leaves the training as it is."""
        seen = self.features
        blob = seen.blob.column if seen.blob else None
        roles = (
            seen.partition_date,
            seen.label,
            seen.label_known_at,
            blob,
            seen.weight,
            self.evaluation.group,
        )
        return columns_read((*seen.numeric, *seen.categorical), *roles)

    @property
    def rules(self) -> Rules:
        """All rules that decide about releases: the section `release`, and how gates decide."""
        of_transitions = [gate for gates in self.transition_gates.values() for gate in gates]
        return Rules.of(self.release, self.evaluation.deciding(*of_transitions))

    @property
    def transition_gates(self) -> dict[str, tuple[Gate, ...]]:
        """Transition, `canary` or `production` → its own gates. Without transitions that have none."""
        return {to: gates for to in (CANARY, PRODUCTION) if (gates := self.release.gates_before(to))}

    @field_validator("training", mode="before")
    @classmethod
    def _name_typos_of_settings(cls, value: Any) -> Any:
        refuse_unknown_keys("training", value, TrainingSettings.__dataclass_fields__)
        if isinstance(value, dict):
            for section, of in (("parallel", Parallel), ("average", AverageSettings)):
                below = cast("dict[Any, Any]", value).get(section)
                refuse_unknown_keys(f"training.{section}", below, of.__dataclass_fields__, at=(section,))
        return cast(Any, value)

    @field_validator("name")
    @classmethod
    def _is_no_folder_of_tables(cls, name: str) -> str:
        if name in ("datasets", "features"):
            raise ValueError(f"'{name}' is the prefix of table names: give the model another name")
        return name

    @model_validator(mode="after")
    def _is_not_hourly(self) -> Self:
        if self.partitions.cadence == "hourly":
            why = (
                "is for tables: a model is trained by days or longer partitions. Write daily, and let a daily feature "
                "table read the hours (cadence: hourly in its inputs)"
            )
            refuse_at(type(self).__name__, {("partitions", "cadence"): why})
        return self

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
    def _texts_have_tokens(self) -> Self:
        objective, blob = self.evaluation.objective, self.features.blob
        why: dict[tuple[str | int, ...], str] = {}
        if not facts_of(objective).has_tokens:
            if blob is not None and blob.vocabulary is not None:
                why["features", "blob", "vocabulary"] = (
                    f"is for objective next_token, and the objective is {objective}: remove it"
                )
        elif blob is None or blob.vocabulary is None:
            why["features", "blob"] = (
                f"objective {objective} predicts the tokens of a text: name its column, a `decode` that returns token "
                "ids, and their number, `vocabulary`"
            )
        elif self.model.script is not None:
            why["model", "script"] = (
                f"objective {objective} needs the platform's loop: name a `function` that builds the model"
            )
        refuse_at(type(self).__name__, why)
        return self

    @model_validator(mode="after")
    def _scripts_have_their_own_loop(self) -> Self:
        default = TrainingSettings()
        for name in TrainingSettings.__dataclass_fields__ if self.model.script else ():
            if name not in OF_SCRIPTS and getattr(self.training, name) != getattr(default, name):
                raise ValueError(
                    f"training.{name} is for the platform's training loop, and {self.model.script} has its "
                    f"own: set it in model.hyperparameters, which are its command line. A script may set "
                    f"these keys of training: {', '.join(OF_SCRIPTS)}"
                )
        return self

    @model_validator(mode="after")
    def _own_metrics_exist(self) -> Self:
        refuse_at(type(self).__name__, dict(own_metric_faults(self.evaluation)))
        return self

    @model_validator(mode="after")
    def _lists_stay_whole(self) -> Self:
        objective = self.evaluation.objective
        if facts_of(objective).has_lists and self.training.parallel.pipeline > 1:
            said = (
                f"objective {objective} needs the rows of a list in one pass, and a pipeline passes rows on one by "
                "one: set pipeline: 1, and divide the model with shard or tensor"
            )
            refuse_at(type(self).__name__, {("training", "parallel", "pipeline"): said})
        return self

    @model_validator(mode="after")
    def _watched_metrics_fit_the_objective(self) -> Self:
        objective, canary = self.evaluation.objective, self.release.canary
        facts = facts_of(objective)
        known = (*OF_REQUESTS, *(("calibration",) if facts.is_zero_or_one else ()), *facts.metrics)
        why: dict[tuple[str | int, ...], str] = {}
        for place, one in enumerate(canary.watch if canary else ()):
            if one.metric not in known:
                legal = [name for name in get_args(WatchedMetric) if name in known]
                why["release", "canary", "watch", place, "metric"] = (
                    f"{one.metric} is not defined for objective {objective}: watch one of {', '.join(legal)}"
                )
        for column in canary.by if canary else ():
            if column in (self.features.label, self.features.label_known_at):
                why["release", "canary", "by"] = (
                    f"'{column}' is not known when a request arrives: name columns that each request has"
                )
        refuse_at(type(self).__name__, why)
        return self

    @model_validator(mode="after")
    def _gates_of_transitions_are_measured(self) -> Self:
        names = [gate.name for gate in self.evaluation.gates]
        why: dict[tuple[str | int, ...], str] = {}
        for to, gates in self.transition_gates.items():
            for place, gate in enumerate(gates):
                try:
                    self.evaluation.require_measured(gate)
                except ValueError as error:
                    why["release", "gates", to, place] = str(error)
                if gate.name in names:
                    why["release", "gates", to, place, "name"] = (
                        f"{gate.name!r} is the name of another gate: give each gate a name of its own"
                    )
                names.append(gate.name)
        refuse_at(type(self).__name__, why)
        return self

    @model_validator(mode="after")
    def _weights_have_a_meaning(self) -> Self:
        objective = self.evaluation.objective
        if self.features.weight is not None and not facts_of(objective).takes_weights:
            said = (
                f"objective {objective} takes no weights of rows: remove weight, or choose another objective"
            )
            refuse_at(type(self).__name__, {("features", "weight"): said})
        return self

    @model_validator(mode="after")
    def _a_study_varies_what_the_training_takes(self) -> Self:
        if self.tuning is not None:
            if self.model.script and self.tuning.pruner != "none":
                said = (
                    f"a pruner stops the platform's training loop after an epoch, and {self.model.script} has its own: "
                    "set pruner: none"
                )
                refuse_at(type(self).__name__, {("tuning", "pruner"): said})
            if said := self._why_no_study_metric(self.tuning.metric):
                refuse_at(type(self).__name__, {("tuning", "metric"): said})
            begin = ("tuning", "space")
            refuse_at(
                type(self).__name__, {(*begin, *path): said for path, said in self._untrainable(self.tuning)}
            )
        return self

    def _why_no_study_metric(self, name: str) -> str:
        """Return the reason for which trials cannot be compared by a metric; empty if they can be."""
        measured = self.evaluation
        legal = (VALIDATION_LOSS, *(one.name for one in measured.of_rows))
        if legal.count(VALIDATION_LOSS) > 1:
            return f"{VALIDATION_LOSS} is the loss by which each training chooses its best epoch: rename the function"
        if name in legal:
            return ""
        listed = f"use one of {', '.join(legal)}"
        if name in (*(one.name for one in measured.measured), *SERVING_NAMES):
            return (
                f"{name} is for gates on a holdout, and a trial is measured on its validation rows: {listed}"
            )
        return f"no metric {name!r} for objective {measured.objective!r}: {listed}"

    def _untrainable(self, tuning: TuningSection) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield the parameters of the space, and their values, with which no training could start."""
        searched = tuning.space.hyperparameters
        if self.model.function is not None:
            unknown = wrong_arguments(self.model.function, {**self.model.hyperparameters, **searched})
            for path, said in unknown.items():
                yield ("hyperparameters", *path), f"{self.model.function} {said}"
        legal = [one for one in SEARCHED_SETTINGS if not self.model.script or one in OF_SCRIPTS]
        for name, values in tuning.space.training.items():
            if name not in legal:
                yield (
                    ("training", name),
                    f"a study cannot vary training.{name}{did_you_mean(name, legal)}",
                )
                continue
            for value in probes(values):
                try:
                    dataclasses.replace(self.training, **{name: value})
                except ValidationError as error:
                    why = error.errors()[0]["msg"].removeprefix("Value error, ")
                    yield ("training", name), f"a trial with {name} {value} could not start: {why}"
                    break

    def days_of(self, keys: Iterable[str]) -> Days:
        """Return the days of the partitions `keys` of this model."""
        cadence = self.partitions.as_cadence
        return Days.of(cadence.bounds(key) for key in keys)

    def holdout_of(self, keys: Sequence[str]) -> Days:
        """Return the days of the holdout of a window with the partitions `keys`, oldest first."""
        return self.days_of(keys[-self.window.holdout :])

    def with_choice(self, choice: Choice | None) -> Self:
        """Return the declaration with the values of `choice` in place of its own; unchanged for None."""
        if choice is None:
            return self
        hyperparameters = {**self.model.hyperparameters, **choice.of("hyperparameters")}
        model = self.model.model_copy(update={"hyperparameters": hyperparameters})
        training = dataclasses.replace(self.training, **choice.of("training"))
        return self.model_copy(update={"model": model, "training": training})

    @model_validator(mode="after")
    def _workers_of_a_script_share_its_work(self) -> Self:
        workers, script = self.training.workers, self.model.script
        library = one_process_library(script) if script and workers > 1 else None
        if library is not None:
            said = (
                f"{workers} workers would each train the same model: {script} trains with {library} in one process, "
                "and it never uses its rank or connects the workers (torch.distributed, training.rank). Set "
                f"workers: 1; {library} uses the machine's cores through its own threads"
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
