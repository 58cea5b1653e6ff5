"""Checks of a published table: contract, volume, warnings and drift, from the verdicts on its partitions."""

from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from ml_assets.components.pages import ON_A_PAGE, table_of
from ml_assets.data.validation.drift_rule import DriftRule
from ml_assets.data.validation.verdict import Finding, Verdict, table_rows
from resources.words import counted, name_some

CONTRACT = "contract"
VOLUME = "volume"
WARNINGS = "warnings"
DRIFT = "drift"
"""Check of tables that declare `drift`; its findings have a rule of this name."""
_OUTCOMES = {WARNINGS: "warned", DRIFT: "drifted"}
"""Check → word for partitions with findings; `rejected` for the others."""
VOLUME_RULES = ("volume", "empty_partition")
"""Rules shown under the check `volume`; all others belong to `contract`."""


def check_specs(key: dg.AssetKey, drift: DriftRule | None = None) -> list[dg.AssetCheckSpec]:
    """Return the checks of every table, and the check of its drift if it is declared.

    Only findings that keep a partition from main fail a blocking check. Automation waits for blocking checks, and a
    warning is no reason to wait.
    """
    declared = [
        (CONTRACT, True, "Columns, types, keys, ranges, categories and event times keep the contract."),
        (VOLUME, True, "Number of rows, compared with earlier partitions."),
        (WARNINGS, False, "Findings that do not keep a partition from main."),
    ]
    if drift is not None:
        said = "Distributions of the columns, compared with those of earlier partitions."
        declared.append((DRIFT, drift.severity == "error", said))
    return [
        dg.AssetCheckSpec(name, asset=key, blocking=blocking, description=description)
        for name, blocking, description in declared
    ]


def check_results(
    verdicts: Mapping[str, Verdict], *, has_drift: bool = False
) -> Iterator[dg.AssetCheckResult]:
    """Yield the results of a table's checks that follow from the verdicts on some of its partitions.

    `has_drift`: the table declares `drift`, and so has that check.
    """
    for check in (CONTRACT, VOLUME, WARNINGS, *([DRIFT] if has_drift else [])):
        shown = {
            key: [one for one in verdict.findings if _shown_by(one, verdict) == check]
            for key, verdict in verdicts.items()
        }
        found = [row for key, findings in shown.items() for row in table_rows(key, findings)]
        named = [key for key, findings in shown.items() if findings]
        outcome = _OUTCOMES.get(check, "rejected")
        only_warns = check == WARNINGS or (
            check == DRIFT and not any(one.blocks for findings in shown.values() for one in findings)
        )
        said = f"{counted(len(verdicts), 'partition')} validated, {len(named)} {outcome}"
        yield dg.AssetCheckResult(
            check_name=check,
            passed=not found,
            severity=dg.AssetCheckSeverity.WARN if only_warns else dg.AssetCheckSeverity.ERROR,
            description=f"{said}: {name_some(named, ON_A_PAGE)}{_columns(check, shown)}" if named else said,
            metadata={
                "findings": table_of(found),
                "partitions validated": len(verdicts),
                f"partitions {outcome}": len(named),
            },
        )


def _columns(check: str, shown: Mapping[str, Sequence[Finding]]) -> str:
    """Return the end of the sentence about drifts: the columns that drift."""
    columns = dict.fromkeys(one.column for findings in shown.values() for one in findings if one.column)
    return f" in {name_some(columns, ON_A_PAGE)}" if check == DRIFT else ""


def _shown_by(finding: Finding, verdict: Verdict) -> str:
    if finding.rule == DRIFT and finding.blocks <= verdict.blocks:
        return DRIFT
    # Findings of an accepted partition no longer keep it from main.
    if not (finding.blocks and verdict.blocks):
        return WARNINGS
    return VOLUME if finding.rule in VOLUME_RULES else CONTRACT
