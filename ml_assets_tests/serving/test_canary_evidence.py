"""Evidence about a canary from requests that a real server answered and logged."""

import time
from dataclasses import replace
from typing import Any

import orjson
import polars as pl
import pytest

from ml_assets.live.canary_rows import answered_since, requests_of
from ml_assets.live.comparison import compare
from ml_assets.release.rules import CanarySection
from ml_assets.serving.answering import Arrival, answer, roles_now
from ml_assets.serving.served import CanaryShare
from ml_assets_tests.serving.conftest import MODEL, Serve, Serving
from resources.artifacts import FolderArtifacts
from resources.ledger import Promotion

SECTION = CanarySection.model_validate(
    {"share": 0.4, "by": ["carrier"], "watch": [{"metric": "error_rate", "no_worse_by": 0.02}]}
)


def _evidence(serving: Serving, artifacts: FolderArtifacts, canary: Promotion) -> pl.DataFrame:
    """End the server and return what it logged about both sides."""
    champion = serving.ledger.models.in_production(MODEL)
    assert champion is not None
    serving.stop()
    rows, _ = answered_since(artifacts, MODEL, champion, canary)
    return rows


@pytest.mark.parametrize(("version", "errors"), [(2, 0.0), (4, 1.0)])
def test_a_canary_that_cannot_read_the_requests_is_worse(
    serve: Serve, log_artifacts: FolderArtifacts, version: int, errors: float
) -> None:
    """Version 4 needs a column that no client sends. Every client gets an answer, and the log shows it."""
    serving = serve(canary=CanaryShare(share=0.4, by=("carrier",)))
    canary = serving.promote(version, "canary")
    for number in range(100):
        assert serving.predict(serving.row(carrier=f"carrier {number}")).status_code == 200
    rows = _evidence(serving, log_artifacts, canary)
    (found,) = compare(SECTION, requests_of(rows), None)
    assert (found.canary, found.champion) == (errors, 0.0)
    assert found.canary_rows + found.champion_rows == 100
    assert found.is_worse == (errors > 0)


class _Slow:
    """A runtime that takes 0.3 s longer."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def predict(self, frame: pl.DataFrame) -> Any:
        time.sleep(0.3)
        return self._runtime.predict(frame)


def test_a_slow_canary_does_not_make_production_slow_in_a_list(
    serve: Serve, log_artifacts: FolderArtifacts
) -> None:
    serving = serve(canary=CanaryShare(share=0.5, by=("tail",)))
    canary = serving.promote(2, "canary")
    roles = roles_now(serving.parts, MODEL)
    assert roles.canary is not None
    slow: Any = _Slow(roles.canary.runtime)
    roles = replace(roles, canary=replace(roles.canary, runtime=slow))
    arrival = Arrival(request_id="a", client_id=None, model=MODEL, at_us=time.time_ns() // 1_000)
    answer(serving.parts, arrival, roles, orjson.dumps([serving.row(tail=f"N{i}") for i in range(20)]))
    found = requests_of(_evidence(serving, log_artifacts, canary))
    (slow_ms,), (other_ms,) = found.latency_ms[found.is_canary], found.latency_ms[~found.is_canary]
    assert slow_ms >= 300 > other_ms


def test_a_canary_that_fails_for_a_row_of_a_list_is_judged_by_that_row(
    serve: Serve, log_artifacts: FolderArtifacts
) -> None:
    """Version 4 needs a column that only the first rows have. Production's own rows stay in the evidence."""
    serving = serve(canary=CanaryShare(share=0.5, by=("tail",)))
    canary = serving.promote(4, "canary")
    rows = [serving.row(tail=f"N{i}", **({"extra": 1.0} if i < 20 else {})) for i in range(40)]
    answered = serving.predict(rows)
    assert answered.status_code == 200
    assert "canary" in {one["role"] for one in answered.json()["predictions"][:20]}
    assert {one["role"] for one in answered.json()["predictions"][20:]} == {"production"}
    found = _evidence(serving, log_artifacts, canary)
    assert sorted(found["place"]) == list(range(40))
    failed = found.filter(pl.col("error").is_not_null())
    assert set(failed["role"]) == {"canary"}
    assert failed["place"].min() == found.filter(pl.col("place") >= 20, role="canary")["place"].min()


def test_the_side_with_more_rows_of_a_list_does_not_fail_more_often(
    serve: Serve, log_artifacts: FolderArtifacts
) -> None:
    """Both versions are the same, and each list has one wrong row, each time another one."""
    serving = serve(canary=CanaryShare(share=0.2, by=("tail",)))
    canary = serving.promote(2, "canary")
    for wrong in range(20):
        rows = [serving.row(tail=f"N{i}") for i in range(20)]
        rows[wrong]["hour"] = "five"
        assert serving.predict(rows).json()["row"] == wrong
    found = requests_of(_evidence(serving, log_artifacts, canary))
    assert found.failed[found.is_canary].sum() == found.failed[~found.is_canary].sum() == 1


def test_requests_with_one_id_of_the_client_are_several_requests(
    serve: Serve, log_artifacts: FolderArtifacts
) -> None:
    serving = serve(canary=CanaryShare(share=0.5, by=("tail",)))
    canary = serving.promote(4, "canary")
    for number in range(20):
        sent = serving.predict(serving.row(tail=f"N{number}"), **{"X-Request-Id": "my-service"})
        assert sent.json()["request_id"] == "my-service"
    rows = _evidence(serving, log_artifacts, canary)
    assert set(rows["client_id"]) == {"my-service"}
    assert (len(requests_of(rows).failed), rows["request_id"].n_unique()) == (20, 20)
