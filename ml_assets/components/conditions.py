"""Named automation conditions, by which assets materialize by themselves."""

import dagster as dg

ON_VALID_INPUTS = (
    dg.AutomationCondition.eager() & dg.AutomationCondition.all_deps_blocking_checks_passed()
).with_label("on_valid_inputs")
"""Upstream changed and its blocking checks passed. `eager()` alone would not ask for the second."""


def condition_named(name: str) -> dg.AutomationCondition | None:
    """The condition a `defs.yaml` names; None for `none`."""
    return {"none": None, "on_valid_inputs": ON_VALID_INPUTS}[name]
