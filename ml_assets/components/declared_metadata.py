"""Declared tables for the guard, stored in the metadata of their assets."""

import dagster as dg

from ml_assets.data.tables.declared import DeclaredTable, DeclaredTables
from ml_assets.model.steps.spec import PREDICTIONS

DECLARED = "declared"
"""Metadata of a table: its declaration, from `DeclaredTable.to_facts`. The asset's page shows it."""


def declared_tables(defs: dg.Definitions) -> DeclaredTables:
    """Return all tables that `defs` declare."""
    found = [
        metadata[DECLARED]
        for asset in defs.assets or ()
        if isinstance(asset, dg.AssetsDefinition)
        for metadata in asset.metadata_by_key.values()
        if DECLARED in metadata
    ]
    return DeclaredTables(DeclaredTable.from_facts(one.data) for one in found)


def is_table(key: dg.AssetKey) -> bool:
    """True if the asset is a table of the lake: a dataset, a feature table, or predictions of a model."""
    return len(key.path) == 2 and (key.path[0] in ("datasets", "features") or key.path[1] == PREDICTIONS)
