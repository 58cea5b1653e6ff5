"""Verdicts for prepared partitions: look up known verdicts, and validate new content as one joined frame.

A verdict that let content pass holds as long as content and rules stay the same. A rejected partition is validated
again, because the rule on its row count compares with a history that grows. The rules are in `ml_assets.validation`,
the consequences of a verdict in `publish.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ml_assets.tables.prepare import Prepared
from ml_assets.tables.spec import TableSpec
from ml_assets.validation.findings import Finding
from ml_assets.validation.verdict import Verdict
from ml_assets.validation.volume import volume_findings
from resources.ledger import Ledger, NewVerdict, VerdictRow


def validate(
    ledger: Ledger, spec: TableSpec, partitions: Mapping[str, Prepared], newest: Mapping[str, VerdictRow]
) -> dict[str, Verdict]:
    """Return key → verdict on exactly this content. `newest` is the ledger's newest attempt per key."""
    digests = {key: one.digest for key, one in partitions.items()}
    stored = ledger.find_verdicts(spec.table, digests, spec.rules_digest)
    # An acceptance covers one attempt: it holds while that attempt is the newest.
    known = {
        key: verdict_of(row)
        for key, row in stored.items()
        if row.status in ("passed", "warned") or (row.status == "accepted" and row == newest.get(key))
    }
    unknown = {key: one for key, one in partitions.items() if key not in known}
    return known | _validate_new(ledger, spec, unknown, known) if unknown else known


def verdict_of(row: VerdictRow) -> Verdict:
    """Return the recorded verdict with its current status: a person may have accepted the partition since."""
    return replace(Verdict.from_json(row.body_json), status=row.status)


def says(row: VerdictRow | None, verdict: Verdict | NewVerdict) -> bool:
    """True if a recorded attempt has the same content, rules and status as `verdict`."""
    return row is not None and (row.content_digest, row.contract_digest, row.status) == (
        verdict.content_digest,
        verdict.contract_digest,
        verdict.status,
    )


def new_row(verdict: Verdict, run_id: str, branch: str) -> NewVerdict:
    """Return a verdict as a row for the ledger."""
    return NewVerdict(
        table=verdict.table,
        key=verdict.key,
        content_digest=verdict.content_digest,
        contract_digest=verdict.contract_digest,
        status=verdict.status,
        rows=verdict.rows,
        body_json=verdict.to_json(),
        run_id=run_id,
        branch=branch,
    )


def _validate_new(
    ledger: Ledger, spec: TableSpec, partitions: Mapping[str, Prepared], known: Mapping[str, Verdict]
) -> dict[str, Verdict]:
    # Imported here, because pandera is heavy and definitions load this module.
    from ml_assets.validation.check import check_partitions

    is_partitioned = spec.cadence.kind != "none"
    findings = check_partitions(
        {key: one.frame for key, one in partitions.items()},
        spec.contract,
        bounds={key: spec.cadence.bounds(key) for key in partitions} if is_partitioned else None,
    )
    history = ledger.volumes(spec.table) | {key: verdict.rows for key, verdict in known.items()}
    # Count only partitions that no other rule blocks: a broken day says nothing about the days after it.
    counted = {key: one.frame.height for key, one in partitions.items() if not _blocks(findings[key])}
    volumes = volume_findings(counted, history, spec.volume)
    return {
        key: Verdict.of(
            spec.table,
            key,
            [*findings[key], *([volumes[key]] if key in volumes else [])],
            rows=one.frame.height,
            content_digest=one.digest,
            contract_digest=spec.rules_digest,
        )
        for key, one in partitions.items()
    }


def _blocks(findings: Sequence[Finding]) -> bool:
    return any(finding.blocks for finding in findings)
