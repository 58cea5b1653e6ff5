"""Partitioned tables in the lake: where they lie, their manifests, write–audit–publish, the guard.

What belongs here: everything between a frame and `main`. What does not: how a frame is judged
(`ml_assets.validation`), how files are versioned (`resources.lake`), Dagster.

    cadence.py       Cadence(kind, start, end): keys(first, last), key_of(day), bounds(key), previous(key, n),
                     window(key, lookback)
    spec.py          TableSpec(kind, name, contract, cadence, volume, allow_empty, code_version, sort_key); .table
    layout.py        paths and names of branches
    parquet.py       deterministic Parquet
    manifest.py      PartitionManifest, content_digest: a partition's identity, Dagster's data version
    reader.py        TableReader(store, commit_id): keys, digests, manifest(s), scan; TableReader.at(store, "main")
    publish.py       publish(store, ledger, spec, incoming, run) -> PublishResult
                       Incoming(key, frame | SourceFailed, inputs, watermark), RunFacts(run_id, url)
                       PublishResult(merged, rejected, failed, commit_id, evidence_branch)
    accept.py        accept_partition(store, ledger, table, key, author, reason): merges kept evidence
    guard.py         judge_window(reader, ledger, table, keys) -> WindowVerdict(missing, rejected, stale)
    code_version.py  code_version(function): changes with the code, not with comments or layout
"""
