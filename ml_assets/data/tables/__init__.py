"""Partitioned tables in the lake: their paths, their manifests, write–audit–publish, and the guard.

Here: everything between a frame and `main`. Not here: validation of a frame (`ml_assets.data.validation`), versions
of files (`resources.lake`), Dagster.

    publish/         write–audit–publish, quarantine, turns, acceptances
    history/         log, difference, retention
    environments.py  create_environment, changes_of, drop_environment, merge_environment(main, name, by)

Files that the rooms share, and that import none of them:

    spec.py          TableSpec(kind, name, contract, cadence, volume, code_version, sort_key),
                     Incoming(key, data: frame | SourceFailed, inputs, watermark), PublishingRun(run_id, url)
    cadence.py       Cadence(kind, start, end): keys(first, last), key_of(day), bounds(key), previous(key, n),
                     window(key, lookback)
    layout.py        paths and branch names
    manifest.py      the manifest of a partition
    parquet.py       deterministic bytes
    reader.py        TableReader.at(store, "main"): keys, digests, manifest(s), scan, input_digests; write_out(…)
    declared.py      DeclaredTables, DeclaredTable.of(spec): the current declarations
    guard.py         validate_window(reader, ledger, tables, table, keys) -> WindowValidation(missing, rejected, stale)
    partition_state.py  the state of one partition for the guard
    user_code.py     functions of a pipeline's author, by import path
    derive.py        partitions computed from other tables
    kept_state.py    variables that a feature function keeps from one call to the next
    leakage.py       find_leaks(reader, declared, keys): the leakage test on partitions in the lake
    online.py        OnlineTable, fill_online(store, declared, reader, keys): rows for an online store
"""
