"""Tables of the ledger at the newest revision of `migrations`, which also defines their append-only triggers."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from resources.ledger.rows import TrainedOn


class UtcTime(sa.TypeDecorator[datetime]):
    """Timezone-aware time in UTC, also in SQLite, which stores no time zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        """Convert to UTC for storage. Raise `ValueError` for a time without a zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value.isoformat()} has no time zone; the ledger takes aware times only")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        """Return the stored time as UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Window(sa.TypeDecorator[TrainedOn]):
    """Column of `TrainedOn` as JSON."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: TrainedOn | None, dialect: Any) -> str | None:
        """Convert to JSON for storage."""
        return None if value is None else json.dumps(asdict(value), sort_keys=True)

    def process_result_value(self, value: str | None, dialect: Any) -> TrainedOn | None:
        """Return the stored JSON as `TrainedOn`."""
        return None if value is None else TrainedOn(**json.loads(value))


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

promotions = sa.Table(
    "ledger_promotions",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("alias", sa.Text, nullable=False),
    sa.Column("bundle_digest", sa.Text, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("at", UtcTime, nullable=False),
    sa.Column("evaluation_digest", sa.Text, nullable=False),
    sa.Column("despite", sa.Text, nullable=False),
    sa.Index("ledger_promotions_by_role", "model", "alias"),
    # Never reuse an id: other rows refer to a promotion by its id.
    sqlite_autoincrement=True,
)

demotions = sa.Table(
    "ledger_demotions",
    metadata,
    sa.Column("promotion", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("at", UtcTime, nullable=False),
)

evaluations = sa.Table(
    "ledger_evaluations",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("partition", sa.Text, nullable=False),
    sa.Column("bundle_digest", sa.Text, nullable=False),
    sa.Column("evaluation_digest", sa.Text, nullable=False),
    sa.Column("champion_digest", sa.Text),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("report", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("at", UtcTime, nullable=False),
    sa.Column("trained_on", Window, nullable=False),
    sa.Index("ledger_evaluations_by_bundle", "model", "bundle_digest"),
    # Never reuse an id: ids order the evaluations of a bundle.
    sqlite_autoincrement=True,
)

semantic_names = sa.Table(
    "ledger_semantic_names",
    metadata,
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("semantic", sa.Text, primary_key=True),
    sa.Column("bundle_digest", sa.Text, nullable=False),
    sa.Column("schema_digest", sa.Text, nullable=False),
    sa.Column("recipe_digest", sa.Text, nullable=False),
    sa.Column("at", UtcTime, nullable=False),
    sa.Index("ledger_semantic_names_by_bundle", "model", "bundle_digest", unique=True),
)
