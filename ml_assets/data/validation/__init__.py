"""Validation of a table: contract, volume, profile, drift, verdict. Reads frames, returns values; stores nothing.

    column_types.py  names of column types; schema_of(frame), schema_hash(schema)
    contract.py      Contract, Column: a section of defs.yaml; schema_drift(expected, frame)
    check.py         check_partitions(frames, contract, bounds, now) -> {key: [Finding]}
    compiled_contract.py  the contract as rules, and the rows that break one as pandera finds them
    explain.py       findings in words for broken rules
    volume.py        VolumeRule; volume_findings(rows, history, rule)
    quarantine.py    divide(frame, contract, broken): rows to keep and rows to set aside
    verdict.py       Finding; Verdict.of(…), explain(), to_json(), from_json(text)
    profile.py       profile(frame): completeness, ranges, distributions and correlations as JSON
    drift.py         drift(baseline, current), psi(before, now): distances between stored profiles
    drift_rule.py    DriftRule, SkewRule: the sections `drift` and `skew` of defs.yaml
    table_drift.py   distributions and means held against the table's own past

The first broken rule loads pandera; an import of this package never does.
"""
