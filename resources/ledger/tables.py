"""Tables of the ledger at the newest revision of `migrations`, which also defines their append-only triggers."""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa


class UtcTime(sa.TypeDecorator[datetime]):
    """Timezone-aware time in UTC, also in SQLite, which stores no time zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        """Convert to UTC for storage. Raise `ValueError` for a time without a zone."""
        return None if value is None else in_utc(value)

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        """Return the stored time as UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class UtcText(sa.TypeDecorator[datetime]):
    """Timezone-aware time in UTC as ISO 8601 text with microseconds: the same characters in every database."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> str | None:
        """Convert to UTC for storage. Raise `ValueError` for a time without a zone."""
        return None if value is None else utc_text(value)

    def process_result_value(self, value: str | None, dialect: Any) -> datetime | None:
        """Return the stored text as a time."""
        return None if value is None else datetime.fromisoformat(value)


def utc_text(value: datetime) -> str:
    """Return the text that `UtcText` stores. Raise `ValueError` for a time without a zone."""
    return in_utc(value).isoformat(timespec="microseconds")


def in_utc(value: datetime) -> datetime:
    """Return the moment in UTC. Raise `ValueError` for a time without a zone."""
    if value.tzinfo is None:
        raise ValueError(f"{value.isoformat()} has no time zone; the ledger takes aware times only")
    return value.astimezone(UTC)


metadata = sa.MetaData()

environments = sa.Table(
    "ledger_environment",
    metadata,
    # The first process writes the only row, with id 1. Every process reads it.
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("environment", sa.Text, nullable=False),
    sa.Column("at", UtcTime, nullable=False),
)

verdicts = sa.Table(
    "ledger_verdicts",
    metadata,
    sa.Column("table", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("content_digest", sa.Text, nullable=False),
    sa.Column("contract_digest", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("body_json", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("branch", sa.Text, nullable=False),
    sa.Column("at", UtcTime, nullable=False),
)

acceptances = sa.Table(
    "ledger_acceptances",
    metadata,
    sa.Column("table", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("content_digest", sa.Text, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("at", UtcTime, nullable=False),
)

changes = sa.Table(
    "ledger_changes",
    metadata,
    # A row for each verdict and acceptance: the partition that it is about, so that a reader finds what changed since
    # it looked. 1, 2, 3 … for each table without a gap: two writers that chose one place cannot both be stored, so a
    # reader that saw a place has seen all before it.
    sa.Column("table", sa.Text, primary_key=True),
    sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("at", UtcTime, nullable=False),
)

decisions = sa.Table(
    "ledger_decisions",
    metadata,
    # 1, 2, 3 … without a gap: the chain (`resources.ledger.chain`) depends on it.
    sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("bundle_digest", sa.Text, nullable=False),
    sa.Column("evaluation_digest", sa.Text, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("at", UtcText, nullable=False),
    sa.Column("facts", sa.Text, nullable=False),
    sa.Column("previous", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Index("ledger_decisions_by_bundle", "model", "kind", "bundle_digest"),
    sa.Index("ledger_decisions_by_evaluation", "evaluation_digest"),
)
