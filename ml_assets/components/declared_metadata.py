"""The tables that definitions declare, as the guard asks for them: carried by the metadata of their assets."""

import dagster as dg

from ml_assets.tables.declared import DeclaredTable, DeclaredTables

DECLARED = "declared"
"""Metadata of a table: `DeclaredTable.to_facts`, what its partitions are made with. The asset's page shows it."""


def declared_tables(defs: dg.Definitions) -> DeclaredTables:
    """Return every table that `defs` declare."""
    found = [
        metadata[DECLARED]
        for asset in defs.assets or ()
        if isinstance(asset, dg.AssetsDefinition)
        for metadata in asset.metadata_by_key.values()
        if DECLARED in metadata
    ]
    return DeclaredTables(DeclaredTable.from_facts(one.data) for one in found)
