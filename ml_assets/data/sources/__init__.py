"""Sources of datasets: where rows come from, from a Python function to a table in PostgreSQL.

Here: the `source` section of a `defs.yaml`, one module per kind, and the reader of each kind; those with a client
library of their own are in `streams/`. Not here: validation and publishing of what a reader returns
(`ml_assets.data.tables`), and Dagster.

Used from outside:

    kinds.py           AnySource, a section of any kind; open_source(section, table, platform) -> SourceReader;
                       read_partitions(reader, cadence, keys, …) -> Incoming of each partition
    protocol.py        SourceReader: read(span) -> SourceRows, look -> Look, latest, preview, check, close;
                       SourceRefused and its kinds: what is wrong with a source, and the remedy

A new kind is a module with a section (a subclass of `SourceSection` with its own `kind`), a reader (a subclass of
`SourceReader`), and one entry in `kinds.py`. If its client library is an extra's, the section is in a module that loads
without it (`streams.sections`), and the reader's module is imported when a source is opened.
"""
