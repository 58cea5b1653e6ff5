"""Rows for planned asset checks: one per check instead of one per partition, for both of Dagster's storages.

Dagster writes a row for every partition of the run and every check, although the project's checks cover the whole run.
Those rows stay "planned" forever. They were a third of a home's event history (6 kB of 20 kB per materialization).
"""

from typing import Any

from dagster._core.events.log import EventLogEntry
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster_shared.record import replace


class OnePlanACheck(SqlEventLogStorage):
    """Mixin of an event log: store one row per planned check, for any number of partitions."""

    def _store_asset_check_evaluation_planned(self, event: EventLogEntry, event_id: int | None) -> None:
        planned: Any = event.get_dagster_event().event_specific_data
        whole = event.get_dagster_event()._replace(
            event_specific_data=replace(planned, partitions_subset=None)
        )
        super()._store_asset_check_evaluation_planned(event._replace(dagster_event=whole), event_id)
