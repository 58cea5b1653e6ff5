"""Evaluations in a ledger without a training before them."""

import hashlib

from ml_assets.model.release.bundle_store import Bundle
from resources.ledger import (
    EvaluationRow,
    GateStatus,
    LaunchedIn,
    Ledger,
    NewEvaluation,
    Person,
    RuleOutcome,
    TrainedOn,
    TransitionOutcome,
)

ADA = Person.unchecked("ada")


def record_evaluation(
    ledger: Ledger,
    bundle: Bundle,
    status: GateStatus = "blessed",
    *,
    trained_on: TrainedOn,
    partition: str = "2013-12-31",
    told: str = "",
    by: Person = ADA,
    launched_in: LaunchedIn = "terminal",
    digest: str = "",
    gates: str = "",
    summary: str = "",
    rules: tuple[RuleOutcome, ...] = (),
    transitions: tuple[TransitionOutcome, ...] = (),
) -> EvaluationRow:
    """An evaluation of `bundle` beside what is in production, as the evaluate step records it. `told`: what makes it
    another than those before."""
    champion = ledger.models.in_production(bundle.facts.lineage.model)
    beside = None if champion is None else champion.bundle_digest
    digest = (
        digest or hashlib.sha256(f"{bundle.digest} {beside} {partition} {status} {told}".encode()).hexdigest()
    )
    return ledger.models.record_evaluation(
        NewEvaluation(
            model=bundle.facts.lineage.model,
            partition=partition,
            bundle_digest=bundle.digest,
            evaluation_digest=digest,
            champion_digest=beside,
            status=status,
            summary=summary or f"{status.capitalize()}: as the test wants it.",
            rules=rules,
            gates=gates,
            transitions=transitions,
            by=by,
            launched_in=launched_in,
            report=f"file:///reports/{digest[:12]}/report.html",
            run_id="a-run",
            trained_on=trained_on,
        )
    )
