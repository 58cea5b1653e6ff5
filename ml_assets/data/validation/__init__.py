"""Validation of a table: contract, volume, profile, drift, verdict. Reads frames, returns values; stores nothing.

    column_types.py  names of column types; schema_of(frame), schema_hash(schema)
    contract.py      Contract, Column: a section of defs.yaml; schema_drift(expected, frame)
    check.py         check_partitions(frames, contract, bounds, now) -> {key: [Finding]}
    schema_check.py  findings about columns and types
    compiled_contract.py  the contract as a pandera schema
    explain.py       findings in words for broken rules
    findings.py      Finding; table_rows(key, findings) for an asset page
    volume.py        VolumeRule; volume_findings(rows, history, rule)
    quarantine.py    divide(frame, contract, broken): rows to keep and rows to set aside
    verdict.py       Verdict.of(…), explain(), to_json(), from_json(text)
    profile.py       profile(frame): completeness, ranges, distributions as JSON
    drift.py         drift(baseline, current), psi(before, now): distances between stored profiles
    drift_counts.py  ProfileCounts(profiles): profiles as counts in common bins
    drift_rule.py    DriftRule, SkewRule: the sections `drift` and `skew` of defs.yaml
    table_drift.py   PastAndNow(profiles).compare(key, window, rule): distances held against the table's own past
    relations.py     correlations(columns); Relations(profiles).residuals(…): means given the other columns
    shifts.py        Shifts(profiles).compare(…): means held against their predictions
    drift_words.py   a change of a column in words

The first check loads pandera; an import of this package never does.
"""
