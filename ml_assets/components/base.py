"""Base of the components: a strict spec from YAML, and Dagster's objects for its sections.

Here: partitions and their mappings, automation conditions, freshness policies, signatures of ops.
"""

from collections.abc import Callable
from datetime import timedelta
from inspect import Signature, signature
from types import CodeType
from typing import Any, ClassVar, Self, TypeVar, cast

import dagster as dg
from pydantic import BaseModel

from ml_assets.components.specs import FreshnessSection
from ml_assets.data.tables.cadence import HOUR_KEY, CadenceKind, PartitionsSection
from ml_assets.foundation.days import after
from ml_assets.foundation.sections import Section

Function = TypeVar("Function", bound=Callable[..., Any])
_SIGNATURES: dict[CodeType, Signature] = {}


def signed(function: Function) -> Function:
    """Return the function of an op with its signature noted at it.

    Dagster asks for the signature of each op 16 times, and Python would read it anew each time. Functions of the same
    text, which differ in their closures, share it.
    """
    made: Any = function
    if made.__code__ not in _SIGNATURES:
        _SIGNATURES[made.__code__] = signature(made)
    made.__signature__ = _SIGNATURES[made.__code__]
    return function


class SpecComponent(dg.Component):
    """Component whose attributes are one strict spec.

    Not `Resolvable`, because that would turn the spec's fields into templates, which accept wrong words.
    """

    spec_type: ClassVar[type[Section]]
    produces: ClassVar[tuple[str, ...]] = ("asset", "asset_check")

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Return the description that `dg list components` shows."""
        return dg.ComponentTypeSpec(
            description=cls.__doc__, owners=["team:ml-platform"], tags=["ml"], produces=list(cls.produces)
        )

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Return the pydantic model of the YAML attributes."""
        return cls.spec_type

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Return the component for validated attributes."""
        return cls(attributes)


def freshness_policy(section: FreshnessSection | None) -> dg.FreshnessPolicy | None:
    """Return Dagster's policy for a section; None without a section."""
    if section is None:
        return None
    warn = section.warn_after_hours
    return dg.FreshnessPolicy.time_window(
        fail_window=timedelta(hours=section.fail_after_hours),
        warn_window=timedelta(hours=warn) if warn is not None else None,
    )


MONDAY = 1
_DAYS_OF_A_WEEK, _HOURS_OF_A_DAY = 7, 24
_LENGTHS: dict[tuple[CadenceKind, CadenceKind], int] = {
    ("daily", "weekly"): _DAYS_OF_A_WEEK,
    ("hourly", "daily"): _HOURS_OF_A_DAY,
    ("hourly", "weekly"): _DAYS_OF_A_WEEK * _HOURS_OF_A_DAY,
}
"""(cadence of a table, cadence of its coarser input) → partitions of the table in one of the input."""
_BEGINNINGS: dict[CadenceKind, str] = {"quarterly": "0 0 1 1,4,7,10 *", "yearly": "0 0 1 1 *"}
"""Cadence that Dagster has no name for → cron schedule of the begins of its partitions."""


def partitions_definition(section: PartitionsSection | None) -> dg.TimeWindowPartitionsDefinition | None:
    """Return Dagster's partitions for a section; None for a table without partitions."""
    if section is None:
        return None
    cadence = section.as_cadence
    start, end = cadence.key_of(section.start), _after_last(section)
    match section.cadence:
        case "hourly":
            return dg.HourlyPartitionsDefinition(start, end_date=end, fmt=HOUR_KEY)
        case "daily":
            return dg.DailyPartitionsDefinition(start, end_date=end)
        case "weekly":
            return dg.WeeklyPartitionsDefinition(start, day_offset=MONDAY, end_date=end)
        case "monthly":
            return dg.MonthlyPartitionsDefinition(start, end_date=end)
        case "quarterly" | "yearly":
            cron = _BEGINNINGS[section.cadence]
            return dg.TimeWindowPartitionsDefinition(start=start, end=end, fmt="%Y-%m-%d", cron_schedule=cron)


def cadence_of(partitions: dg.TimeWindowPartitionsDefinition) -> CadenceKind:
    """Return the cadence of partitions that `partitions_definition` made."""
    if partitions.schedule_type is not None:
        return cast("CadenceKind", partitions.schedule_type.value.lower())
    return next(kind for kind, cron in _BEGINNINGS.items() if cron == partitions.cron_schedule)


def lookback_mapping(partitions: int) -> dg.PartitionMapping:
    """Return the mapping by which a partition reads itself and the given number before it, within the table's start."""
    return dg.TimeWindowPartitionMapping(start_offset=-partitions, allow_nonexistent_upstream_partitions=True)


def coarser_mapping(own: CadenceKind, read: CadenceKind, partitions: int) -> dg.PartitionMapping:
    """Return the mapping by which a day reads the week before its own and the given number of weeks before that; an
    hour, days or weeks."""
    # Dagster shifts the window of the reader, in its own partitions, and takes those of the input in which its ends
    # lie.
    length = _LENGTHS[own, read]
    return dg.TimeWindowPartitionMapping(
        start_offset=-length * (partitions + 1),
        end_offset=-length,
        allow_nonexistent_upstream_partitions=True,
    )


def _after_last(section: PartitionsSection) -> str | None:
    """Return the day after the last partition, or its first hour, because Dagster's end is exclusive."""
    if section.end is None:
        return None
    cadence = section.as_cadence
    _, last = cadence.bounds(cadence.keys(section.end, section.end)[-1])
    return cadence.key_of(after(last))


ON_VALID_INPUTS = (
    dg.AutomationCondition.eager() & dg.AutomationCondition.all_deps_blocking_checks_passed()
).with_label("on_valid_inputs")
"""Upstream changed and its blocking checks passed. `eager()` alone would ignore the checks."""

ON_LATE_INPUTS = (
    dg.AutomationCondition.eager().without(dg.AutomationCondition.in_latest_time_window())
    & dg.AutomationCondition.all_deps_blocking_checks_passed()
).with_label("on_late_inputs")
"""As `ON_VALID_INPUTS`, but for partitions of any age: labels arrive after the day has passed."""


def condition_named(name: str, optional: dg.AssetKey | None = None) -> dg.AutomationCondition | None:
    """Return the condition that a `defs.yaml` names; None for `none`.

    `optional` is an input that need not exist: a study that nobody has run yet must not keep a model from training.
    """
    condition = {"none": None, "on_valid_inputs": ON_VALID_INPUTS}[name]
    if condition is None or optional is None:
        return condition
    missing = dg.AutomationCondition.any_deps_missing()
    needed = missing.ignore(dg.AssetSelection.assets(optional))
    return condition.replace(missing, needed).with_label(name)
