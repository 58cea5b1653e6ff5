"""Policy of served rows against the feature table: the section `served_skew` of a model, and what breaks it.

The only place that decides, for the check and for `ml-assets skew`. Not here: the comparison (`served_skew`), its
record (`served_verdicts`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from ml_assets.data.validation.findings import Finding
from ml_assets.foundation.sections import Section
from resources.words import counted

if TYPE_CHECKING:
    from ml_assets.use.live.served_skew import ColumnSkew, VersionSkew

RULE = "served_skew"
"""Rule of the findings."""

Share = Annotated[float, Field(ge=0, lt=1)]


class ServedSkewRule(Section):
    """Comparison of each partition's requests with the feature table, bit by bit after the training's transform."""

    at_most: Share = 0.0
    """Largest share of the compared rows in which an input may differ. By default, none may."""
    columns: dict[str, Share] = Field(default_factory=dict[str, float])
    """The same for single inputs."""
    ignore: tuple[str, ...] = ()
    """Inputs that may differ in any row."""
    severity: Literal["warn", "error"] = "warn"
    """Colour of the check: `warn` is yellow, `error` red. Neither stops anything."""

    def allows(self, column: "ColumnSkew", rows: int) -> bool:
        """Return True if `column` may differ in its rows, of `rows` compared ones."""
        return column.name in self.ignore or column.rows <= self._limit_of(column.name) * rows

    def findings(self, found: "Sequence[VersionSkew]", table: str) -> list[Finding]:
        """Return a finding for each input that differs in too many rows, and one if no row could be compared.

        Without values of rows, because verdicts are kept and values may be sensitive.
        """
        severity = "block" if self.severity == "error" else "warn"
        broken = [
            Finding(
                rule=RULE,
                column=column.name,
                severity=severity,
                measured=f"version {one.version}: {column.rows:,} of {counted(one.rows, 'row')}",
                limit=f"at most {self._limit_of(column.name):.3g} of the rows",
                failing_rows=column.rows,
                explanation=f"Requests held other values of {column.name} than {table}, so the version read another "
                "input than in training. `ml-assets skew` prints a row. Correct the client, or the feature function.",
            )
            for one in found
            for column in one.columns
            if not self.allows(column, one.rows)
        ]
        unknown = sum(count for one in found for count in one.left_out.values())
        if not broken and unknown and not any(one.rows for one in found):
            why = "; ".join(f"{count:,} {why}" for one in found for why, count in one.left_out.items())
            return [
                Finding(
                    rule=RULE,
                    severity=severity,
                    measured=f"none of {counted(unknown, 'row')}: {why}",
                    limit="rows to compare",
                    failing_rows=unknown,
                    explanation=f"No request has a row in {table}, so nothing says that both agree. Send the primary "
                    "key with each request.",
                )
            ]
        return broken

    def _limit_of(self, column: str) -> float:
        return self.columns.get(column, self.at_most)
