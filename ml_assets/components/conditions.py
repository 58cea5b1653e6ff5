"""Named automation conditions, by which Dagster materializes assets without a request."""

import dagster as dg

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
