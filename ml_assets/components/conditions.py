"""Named automation conditions, by which Dagster materializes assets without a request."""

import dagster as dg

ON_VALID_INPUTS = (
    dg.AutomationCondition.eager() & dg.AutomationCondition.all_deps_blocking_checks_passed()
).with_label("on_valid_inputs")
"""Upstream changed and its blocking checks passed. `eager()` alone would ignore the checks."""


def condition_named(name: str) -> dg.AutomationCondition | None:
    """Return the condition that a `defs.yaml` names; None for `none`."""
    return {"none": None, "on_valid_inputs": ON_VALID_INPUTS}[name]
