"""Rows for planned asset checks, few enough for runs over a year of partitions: for both of Dagster's storages.

Dagster writes a row for every partition of the run and every check, though our checks judge the run as a whole. Those
rows stay "planned" for good, and were a third of a home's event history (6 kB of 20 per materialization).
"""

from typing import Any

from dagster._core.events.log import EventLogEntry
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster_shared.record import replace


class OnePlanACheck(SqlEventLogStorage):
    """Mixin of an event log: one row for a planned check, whatever number of partitions its run has."""

    def _store_asset_check_evaluation_planned(self, event: EventLogEntry, event_id: int | None) -> None:
        planned: Any = event.get_dagster_event().event_specific_data
        whole = event.get_dagster_event()._replace(
            event_specific_data=replace(planned, partitions_subset=None)
        )
        super()._store_asset_check_evaluation_planned(event._replace(dagster_event=whole), event_id)
