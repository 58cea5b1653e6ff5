"""Versions that a server holds, and their roles. Loading a version replays its golden rows.

Here: one version in memory, the roles of one model at one moment. Not here: the choice of versions (`watch`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

import polars as pl

from ml_assets.data.features.categories import category_text
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.runtime import GOLDEN, GOLDEN_OUTPUT, ServingModel


@dataclass(frozen=True, kw_only=True)
class ServedVersion:
    """One version, loaded."""

    model: str
    number: int
    """MLflow's number."""
    since: datetime
    """Moment of the promotion that gave the role; of a shadow by number, the moment it was loaded."""
    bundle: Bundle
    runtime: ServingModel
    example: Mapping[str, Any]
    """First golden row."""
    categories: Sequence[tuple[str, pl.DataType, frozenset[str]]]
    """Each column with categories, its type in the feature table, and the categories of the training rows."""

    @classmethod
    def load(cls, model: str, number: int, since: datetime, bundle: Bundle, threads: int) -> Self:
        """Load a bundle and replay its golden rows. Raises `BundleRefused`."""
        runtime = ServingModel.load(bundle.folder, threads=threads)
        golden = pl.read_parquet(bundle.folder / GOLDEN, n_rows=1).drop(GOLDEN_OUTPUT)
        return cls(
            model=model,
            number=number,
            since=since,
            bundle=bundle,
            runtime=runtime,
            example=golden.row(0, named=True),
            categories=[
                (one.name, golden.schema[one.name], frozenset(one.vocabulary))
                for one in bundle.facts.fitted.categorical
            ],
        )

    @property
    def digest(self) -> str:
        """Digest of its bundle."""
        return self.bundle.digest

    def unknown_categories(self, row: Mapping[str, Any]) -> list[str]:
        """Return the columns of `row` whose category the model reads as unknown, because no training row had it.

        Null is not among them: the model was trained to read it. The model must have predicted `row` before.
        """
        found: list[str] = []
        for name, dtype, vocabulary in self.categories:
            value = row[name]
            if (
                value is not None
                and value not in vocabulary
                and category_text(value, dtype) not in vocabulary
            ):
                found.append(name)
        return found


@dataclass(frozen=True, kw_only=True)
class CanaryShare:
    """Share of entities that the canary answers (`release.canary` of the rules in force)."""

    share: float
    by: tuple[str, ...]
    """Columns of a raw row that name its entity."""

    def __str__(self) -> str:
        return f"a canary answers {100 * self.share:g} % of the entities ({', '.join(self.by)})"


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Roles of one model at one moment. A request reads them once, so it sees one consistent state."""

    production: ServedVersion | None = None
    canary: ServedVersion | None = None
    """Version that answers a share of the entities."""
    shadows: tuple[ServedVersion, ...] = ()
    """Versions whose predictions are only logged."""
    share: CanaryShare | None = None
    """None: a canary is only a shadow."""
    secret: bytes = field(default=b"", repr=False)
    """Secret of the assignment; empty without a share."""

    @property
    def versions(self) -> dict[str, ServedVersion]:
        """Role → version; further shadows are left out."""
        roles = {
            "production": self.production,
            "canary": self.canary,
            "shadow": next(iter(self.shadows), None),
        }
        return {role: version for role, version in roles.items() if version is not None}
