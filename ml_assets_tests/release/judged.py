"""Evaluations in a ledger without a training before them."""

import hashlib

from ml_assets.release.store import Bundle
from resources.ledger import EvaluationRow, GateStatus, Ledger, NewEvaluation


def judged(
    ledger: Ledger,
    bundle: Bundle,
    status: GateStatus = "blessed",
    *,
    partition: str = "2013-12-31",
    told: str = "",
) -> EvaluationRow:
    """An evaluation of `bundle`, as the evaluate step records it. `told`: what makes it another than those before."""
    digest = hashlib.sha256(f"{bundle.digest} {partition} {status} {told}".encode()).hexdigest()
    return ledger.models.record_evaluation(
        NewEvaluation(
            model=bundle.facts.lineage.model,
            partition=partition,
            bundle_digest=bundle.digest,
            evaluation_digest=digest,
            champion_digest=None,
            status=status,
            summary=f"{status.capitalize()}: as the test wants it.",
            report=f"file:///reports/{digest[:12]}/report.html",
            run_id="a-run",
        )
    )
