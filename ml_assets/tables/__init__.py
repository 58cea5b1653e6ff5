"""Partitioned tables in the lake: where they lie, their manifests, write–audit–publish, the guard.

What belongs here: everything between a frame and `main`. What does not: how a frame is judged
(`ml_assets.validation`), how files are versioned (`resources.lake`), Dagster.

Used from outside:

    spec.py          TableSpec(kind, name, contract, cadence, volume, code_version, sort_key),
                     Incoming(key, data: frame | SourceFailed, inputs, watermark), RunFacts(run_id, url)
    cadence.py       Cadence(kind, start, end): keys(first, last), key_of(day), bounds(key), previous(key, n),
                     window(key, lookback)
    reader.py        TableReader.at(store, "main"): keys, digests, manifest(s), scan, input_digests
    publish.py       publish(store, ledger, spec, incoming, run) -> PublishResult(merged, rejected, failed,
                     commit_id)
    derive.py        partitions computed from other tables
    accept.py        accept_partition(store, ledger, table, key, author, reason)
    audits.py        unaudited(store, newest): what came to main past the audit
    declared.py      DeclaredTables, DeclaredTable.of(spec): what partitions are made with now
    guard.py         validate_window(reader, ledger, tables, table, keys) -> WindowValidation(missing, rejected, stale)
    code_version.py  code_version(path): changes with the code, not with comments or layout

Inside: `layout.py` paths and branch names, `parquet.py` deterministic bytes, `manifest.py` what a partition
says of itself, `prepare.py` frame to objects, `validate.py` verdicts, `landing.py` branch to main, `standing.py` one
partition as the guard finds it.
"""
