"""Partitioned tables in the lake: their paths, their manifests, write–audit–publish, and the guard.

Here: everything between a frame and `main`. Not here: validation of a frame (`ml_assets.data.validation`), versions
of files (`resources.lake`), Dagster.

Used from outside:

    spec.py          TableSpec(kind, name, contract, cadence, volume, code_version, sort_key),
                     Incoming(key, data: frame | SourceFailed, inputs, watermark), PublishingRun(run_id, url)
    cadence.py       Cadence(kind, start, end): keys(first, last), key_of(day), bounds(key), previous(key, n),
                     window(key, lookback)
    reader.py        TableReader.at(store, "main"): keys, digests, manifest(s), scan, input_digests
    publish.py       publish(store, ledger, spec, incoming, run) -> PublishResult(merged, rejected, failed,
                     commit_id)
                     publish_in_chunks(…, chunk_bytes) -> iterator of PublishResult, for long ranges
    earlier.py       keep_earlier(base, table, key, objects): rows that a correction replaces
    derive.py        partitions computed from other tables
    resumed.py       published_by(runs, …): what an interrupted run has already published
    accept.py        accept_partition(store, ledger, table, key, author, reason)
    past_profiles.py drift_of_partitions(reader, spec, new): new partitions compared with earlier ones
    readmit.py       readmit(store, ledger, spec, key, by): quarantined rows that pass now
    audits.py        unaudited(store, newest): commits on main without an audit
    declared.py      DeclaredTables, DeclaredTable.of(spec): the current declarations
    guard.py         validate_window(reader, ledger, tables, table, keys) -> WindowValidation(missing, rejected, stale)

Inside: `layout.py` paths and branch names, `parquet.py` deterministic bytes, `manifest.py` the manifest of a
partition, `prepare.py` frame to objects, `landing.py` branch to main, `partition_state.py` the state of one
partition for the guard.
"""
