"""Dagster's own rules for names, owners and cron schedules, and its type of freshness policies.

Private area: validation of definitions. The public way is to make the definition and to read Dagster's error, which
names neither file nor line, comes without the faults of other keys, and ends the load. The public
`FreshnessPolicy.time_window` returns a type that is not public and alone has the window.
"""

from dagster._core.definitions.freshness import TimeWindowFreshnessPolicy
from dagster._core.definitions.utils import DISALLOWED_NAMES, is_valid_owner
from dagster._utils.schedules import is_valid_cron_schedule

__all__ = ["DISALLOWED_NAMES", "TimeWindowFreshnessPolicy", "is_valid_cron_schedule", "is_valid_owner"]
