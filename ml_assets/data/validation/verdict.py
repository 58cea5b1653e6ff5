"""Findings, and the verdict on one partition that follows from them: values that the ledger stores and pages show.

Not here: storing them (the ledger), and finding faults (`check.py`, `volume.py`).
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

Severity = Literal["block", "warn"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One rule that one partition breaks."""

    rule: str
    """Snake case, such as `unknown_category`: stable, to filter by."""
    column: str | None = None
    """The column; several joined by `, `; None for a rule over the whole partition."""
    severity: Severity = "block"
    """`block` keeps the partition from main; `warn` is shown and lets it pass."""
    measured: str
    """Measurement, in short: `'ZZ' (3 rows)`."""
    limit: str
    """Expectation, in short: `one of 16 values`."""
    failing_rows: int = 0
    """Rows that break the rule; 0 if the rule is not about rows."""
    examples: tuple[str, ...] = ()
    """Up to five failing rows: `'ZZ' in row 12 (flight=1545, origin='EWR')`; rows count from 0."""
    explanation: str
    """One or two sentences: the fault and the remedy."""

    @property
    def blocks(self) -> bool:
        """True if the finding keeps the partition from main."""
        return self.severity == "block"

    def to_facts(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return {**dataclasses.asdict(self), "examples": list(self.examples)}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Inverse of `to_facts`."""
        values: dict[str, Any] = {**facts, "examples": tuple(facts["examples"])}
        return cls(**values)


def table_rows(partition: str, findings: Sequence[Finding]) -> list[dict[str, str | int]]:
    """Return findings as rows of a table, the worst first, for an asset page or a terminal."""
    return [
        {
            "partition": partition,
            "rule": one.rule,
            "column": one.column or "",
            "severity": one.severity,
            "found": one.measured,
            "expected": one.limit,
            "rows": one.failing_rows,
            "examples": "; ".join(one.examples),
            "remedy": one.explanation,
        }
        for one in sorted(findings, key=lambda one: (not one.blocks, -one.failing_rows))
    ]


Status = Literal["passed", "warned", "rejected", "accepted"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Outcome of validating one content of a partition by given rules."""

    table: str
    """Table id, such as `datasets/flights`."""
    key: str
    """Partition key, such as `2013-01-01`."""
    status: Status
    """`rejected` if a finding blocks, `warned` if findings only warn. `accepted` if a person accepted it later."""
    findings: tuple[Finding, ...]
    rows: int
    content_digest: str
    """Identity of the partition's content."""
    contract_digest: str
    """Identity of the rules that validated it."""
    quarantined: int = 0
    """Rows that were set aside and are not in this content."""
    quarantine_digest: str = ""
    """Identity of those rows' content; empty without any."""
    undated_digest: str = ""
    """Identity of the source's rows without a time that were read with it; empty without any."""
    referred: tuple[tuple[str, str, str], ...] = ()
    """(table, key, content digest) of the partitions in which foreign keys were looked up."""

    @classmethod
    def of(
        cls,
        table: str,
        key: str,
        findings: Sequence[Finding],
        *,
        rows: int,
        content_digest: str,
        contract_digest: str,
        quarantined: int = 0,
        quarantine_digest: str = "",
        undated_digest: str = "",
        referred: tuple[tuple[str, str, str], ...] = (),
    ) -> Self:
        """Return the verdict that follows from `findings`."""
        rejected = any(finding.blocks for finding in findings)
        return cls(
            table=table,
            key=key,
            status="rejected" if rejected else "warned" if findings else "passed",
            findings=tuple(findings),
            rows=rows,
            content_digest=content_digest,
            contract_digest=contract_digest,
            quarantined=quarantined,
            quarantine_digest=quarantine_digest,
            undated_digest=undated_digest,
            referred=referred,
        )

    @property
    def blocks(self) -> bool:
        """True if nothing may be built on this partition."""
        return self.status == "rejected"

    @property
    def is_volume_alone(self) -> bool:
        """True if only the number of rows keeps the partition from main."""
        return {finding.rule for finding in self.findings if finding.blocks} == {"volume"}

    def explain(self) -> str:
        """Return a few lines: the outcome, then each finding with measurement, expectation and remedy."""
        outcome = f"{self.table} {self.key}: {self.status}, {self.rows} rows"
        if not self.findings:
            return outcome
        lines = [f"{outcome}, {len(self.findings)} {'finding' if len(self.findings) == 1 else 'findings'}"]
        for finding in sorted(self.findings, key=lambda one: not one.blocks):
            where = f" {finding.column}" if finding.column else ""
            rows = f" [{finding.failing_rows} rows]" if finding.failing_rows else ""
            found = f"{finding.measured}; expected {finding.limit}"
            lines.append(f"  {finding.severity} {finding.rule}{where}: {found}{rows}")
            lines.append(f"    {finding.explanation}")
            if finding.examples:
                lines.append(f"    for example {'; '.join(finding.examples)}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return one JSON object; the same verdict gives the same text."""
        facts = dataclasses.asdict(self)
        facts["findings"] = [finding.to_facts() for finding in self.findings]
        return json.dumps(facts, ensure_ascii=False, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`."""
        facts: dict[str, Any] = json.loads(text)
        facts["referred"] = tuple(tuple(one) for one in facts["referred"])
        facts["findings"] = tuple(Finding.from_facts(one) for one in facts["findings"])
        return cls(**facts)
