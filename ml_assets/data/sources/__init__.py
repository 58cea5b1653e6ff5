"""Sources of datasets: where rows come from, from a Python function to a table in PostgreSQL.

Here: the `source` section of a `defs.yaml`, one module per kind, and the reader of each kind. Not here: validation and
publishing of what a reader returns (`ml_assets.data.tables`), and Dagster.

Used from outside:

    kinds.py           AnySource, the section of every kind; open_source(section, table, platform) -> SourceReader
    protocol.py        SourceReader: read(span) -> SourceRows, look -> Look, latest, preview, check, close
    reading.py         read_partitions(reader, cadence, keys, …) -> Incoming of each partition
    errors.py          SourceRefused and its kinds: what is wrong with a source, and the remedy

A new kind is a module with a section (a subclass of `SourceSection` with its own `kind`) and a reader (a subclass of
`SourceReader`), and one entry in `kinds.py`. A reader imports its client library when it connects.
"""
