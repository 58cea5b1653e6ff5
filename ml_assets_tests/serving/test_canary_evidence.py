"""Evidence about a canary from requests that a real server answered and logged."""

import pytest

from ml_assets.live.canary_rows import answered_since, requests_of
from ml_assets.live.comparison import compare
from ml_assets.release.rules import CanarySection
from ml_assets.serving.watch import CanaryShare
from ml_assets_tests.serving.conftest import MODEL, Serve
from resources.artifacts import FolderArtifacts

SECTION = CanarySection.model_validate(
    {"share": 0.4, "by": ["carrier"], "watch": [{"metric": "error_rate", "no_worse_by": 0.02}]}
)


@pytest.mark.parametrize(("version", "errors"), [(2, 0.0), (4, 1.0)])
def test_a_canary_that_cannot_read_the_requests_is_worse(
    serve: Serve, log_artifacts: FolderArtifacts, version: int, errors: float
) -> None:
    """Version 4 needs a column that no client sends. Every client gets an answer, and the log shows it."""
    serving = serve(canary=CanaryShare(share=0.4, by=("carrier",)))
    canary = serving.promote(version, "canary")
    for number in range(100):
        assert serving.predict(serving.row(carrier=f"carrier {number}")).status_code == 200
    serving.stop()
    champion = serving.ledger.models.in_production(MODEL)
    assert champion is not None
    rows, _ = answered_since(log_artifacts, MODEL, champion, canary)
    (found,) = compare(SECTION, requests_of(rows), None)
    assert (found.canary, found.champion) == (errors, 0.0)
    assert found.canary_rows + found.champion_rows == 100
    assert found.is_worse == (errors > 0)
