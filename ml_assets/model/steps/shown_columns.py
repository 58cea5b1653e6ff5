"""Columns whose values a report may show."""

from collections.abc import Sequence

from ml_assets.data.tables.reader import TableReader
from ml_assets.model.steps.spec import ModelInputsSection


def shown_features(features: ModelInputsSection, reader: TableReader, keys: Sequence[str]) -> list[str]:
    """Return the model's numbers and categories, without those that the contract of a partition marks as sensitive."""
    hidden: set[str] = set()
    for manifest in reader.manifests(features.table, keys).values():
        columns = manifest.profile.get("columns", {})
        hidden |= {name for name, facts in columns.items() if facts.get("hidden")}
    return [name for name in (*features.numeric, *features.categorical) if name not in hidden]
