"""From dated raw data to frozen training sets: sources, validation, tables, features, snapshots."""
