"""Finding: one broken rule, described for people with the fault, the place and the remedy.

Values only. `check.py` and `volume.py` produce findings; `verdict.py` decides by them.
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


TABLE_COLUMNS = (
    "partition",
    "rule",
    "column",
    "severity",
    "found",
    "expected",
    "rows",
    "examples",
    "remedy",
)


def table_rows(partition: str, findings: Sequence[Finding]) -> list[dict[str, str | int]]:
    """Return findings as rows of `TABLE_COLUMNS`, the worst first, for an asset page or a terminal."""
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
