"""The judgement of one partition: a value that is stored, shown, and read by who wants to use the partition.

Storing it belongs to the ledger; finding what is wrong to `check.py` and `volume.py`.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from ml_assets.validation.findings import Finding

Status = Literal["passed", "warned", "rejected", "accepted"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict: the judged content, the rules, and the outcome."""

    table: str
    """Table id, such as `datasets/flights`."""
    key: str
    """Partition key, such as `2013-01-01`."""
    status: Status
    """`rejected` where a finding blocks, `warned` where one warns; `accepted` is a person's later word."""
    findings: tuple[Finding, ...]
    rows: int
    content_digest: str
    """Identity of the partition's content."""
    contract_digest: str
    """Identity of the rules it was judged by."""

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
    ) -> Self:
        """The verdict that follows from findings."""
        rejected = any(finding.blocks for finding in findings)
        return cls(
            table=table,
            key=key,
            status="rejected" if rejected else "warned" if findings else "passed",
            findings=tuple(findings),
            rows=rows,
            content_digest=content_digest,
            contract_digest=contract_digest,
        )

    @property
    def blocks(self) -> bool:
        """True where nothing may be built on this partition."""
        return self.status == "rejected"

    def explain(self) -> str:
        """A few lines: the outcome, then each finding with what was found, expected, and helps."""
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
        """One JSON object; the same verdict gives the same text."""
        facts = dataclasses.asdict(self)
        facts["findings"] = [finding.to_facts() for finding in self.findings]
        return json.dumps(facts, ensure_ascii=False, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`."""
        facts: dict[str, Any] = json.loads(text)
        facts["findings"] = tuple(Finding.from_facts(one) for one in facts["findings"])
        return cls(**facts)
