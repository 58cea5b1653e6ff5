"""How far the newest event of a table lies behind a moment. What is too old, Dagster decides."""

from datetime import UTC, datetime, timedelta

import polars as pl

from ml_assets.validation.contract import Contract


def newest_event(frame: pl.DataFrame, contract: Contract) -> datetime | None:
    """The latest event time, UTC; None without rows, without an event time, or where it is no legal time."""
    column = contract.event_time
    if column is None or not frame.schema.get(column, pl.Null()).is_temporal():
        return None
    # In whole seconds since 1970, because bad data may lie beyond what Python's datetime can hold.
    seconds = frame.get_column(column).cast(pl.Datetime("us")).dt.epoch("s").max()
    if not isinstance(seconds, int):
        return None
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    except OverflowError:
        return None


def lag_hours(newest: datetime | None, now: datetime | None = None) -> float | None:
    """Hours from the newest event to `now` (aware; default: this moment); negative for one in the future."""
    if newest is None:
        return None
    return ((now or datetime.now(UTC)) - newest).total_seconds() / 3600
