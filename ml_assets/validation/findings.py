"""One broken rule, said so that a person knows what is wrong, where, and what helps.

Values only: finding them belongs in `check.py` and `volume.py`, deciding by them in `verdict.py`.
"""

import dataclasses
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
    """Rows that break the rule; 0 where the rule is not about rows."""
    examples: tuple[str, ...] = ()
    """Up to five failing rows: `'ZZ' in row 12 (flight=1545, origin='EWR')`; rows count from 0."""
    explanation: str
    """One or two sentences: what is wrong, and what helps."""

    @property
    def blocks(self) -> bool:
        """True where the partition may not reach main."""
        return self.severity == "block"

    def to_facts(self) -> dict[str, Any]:
        """JSON values."""
        return {**dataclasses.asdict(self), "examples": list(self.examples)}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Self:
        """Inverse of `to_facts`."""
        values: dict[str, Any] = {**facts, "examples": tuple(facts["examples"])}
        return cls(**values)


TABLE_COLUMNS = (
    "partition",
    "rule",
    "column",
    "severity",
    "found",
    "expected",
    "rows",
    "examples",
    "what helps",
)


def table_rows(partition: str, findings: Sequence[Finding]) -> list[dict[str, str | int]]:
    """Findings as rows of `TABLE_COLUMNS`, the worst first, for an asset page or a terminal."""
    worst_first = sorted(findings, key=lambda finding: (not finding.blocks, -finding.failing_rows))
    return [
        dict(
            zip(
                TABLE_COLUMNS,
                (
                    partition,
                    finding.rule,
                    finding.column or "",
                    finding.severity,
                    finding.measured,
                    finding.limit,
                    finding.failing_rows,
                    "; ".join(finding.examples),
                    finding.explanation,
                ),
                strict=True,
            )
        )
        for finding in worst_first
    ]
