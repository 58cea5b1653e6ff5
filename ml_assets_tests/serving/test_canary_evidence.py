"""Evidence about a canary from requests that a real server answered and logged."""

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
import pytest

from ml_assets.model.release.rules import CanarySection
from ml_assets.use.live.canary_record import FirstRows, first_rows, requests_of
from ml_assets.use.live.comparison import compare, comparisons
from ml_assets.use.serving import canary as canaries
from ml_assets.use.serving.answering import Limits
from ml_assets.use.serving.request_log import read_requests
from ml_assets.use.serving.watch import CanaryShare
from ml_assets_tests.serving.conftest import MODEL, Serve, Serving
from resources.artifacts import FolderArtifacts
from resources.ledger import Promotion

SECTION = CanarySection.model_validate(
    {"share": 0.4, "by": ["carrier"], "watch": [{"metric": "error_rate", "no_worse_by": 0.02}]}
)


def _evidence(serving: Serving, artifacts: FolderArtifacts, canary: Promotion) -> FirstRows:
    """End the server and return what it logged about both sides."""
    champion = serving.ledger.models.in_production(MODEL)
    assert champion is not None
    serving.stop()
    log = pl.concat(
        read_requests(artifacts, MODEL, day) for day in {canary.at.date(), datetime.now(UTC).date()}
    )
    return first_rows(log, champion, canary, ())


@pytest.mark.parametrize(("version", "errors"), [(2, 0.0), (4, 1.0)])
def test_a_canary_that_cannot_read_the_requests_is_worse(
    serve: Serve, log_artifacts: FolderArtifacts, version: int, errors: float
) -> None:
    """Version 4 needs a column that no client sends. Every client gets an answer, and the log shows it."""
    serving = serve(canary=CanaryShare(share=0.4, by=("carrier",)))
    canary = serving.promote(version, "canary")
    for number in range(100):
        assert serving.predict(serving.row(carrier=f"carrier {number}")).status_code == 200
    rows = _evidence(serving, log_artifacts, canary).rows
    (found,) = comparisons(SECTION, compare(SECTION, (), requests_of(rows)))
    assert (found.canary, found.champion) == (errors, 0.0)
    assert found.canary_rows + found.champion_rows == 100
    assert found.is_worse == (errors > 0)


def test_latency_is_compared_between_requests_of_one_row(
    serve: Serve, log_artifacts: FolderArtifacts
) -> None:
    """A side with a small share has few rows of each list, and would look fast."""
    serving = serve(canary=CanaryShare(share=0.5, by=("tail",)))
    canary = serving.promote(2, "canary")
    assert serving.predict([serving.row(tail=f"N{i}") for i in range(20)]).status_code == 200
    for number in range(20, 40):
        assert serving.predict(serving.row(tail=f"N{number}")).status_code == 200
    found = requests_of(_evidence(serving, log_artifacts, canary).rows)
    assert len(found.failed) == 40
    assert np.isfinite(found.latency_ms).sum() == 20


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
    found = _evidence(serving, log_artifacts, canary).rows
    assert sorted(found["place"]) == list(range(40))
    failed = found.filter(pl.col("error").is_not_null())
    assert set(failed["role"]) == {"canary"}
    assert set(failed["place"]) == set(found.filter(pl.col("place") >= 20, role="canary")["place"])


def test_a_wrong_row_of_a_list_is_no_failure_of_the_others(
    serve: Serve, log_artifacts: FolderArtifacts
) -> None:
    """Both versions are the same, and each list has one wrong row, each time another one."""
    serving = serve(canary=CanaryShare(share=0.2, by=("tail",)))
    canary = serving.promote(2, "canary")
    for wrong in range(20):
        rows = [serving.row(tail=f"N{wrong} {i}") for i in range(20)]
        rows[wrong]["hour"] = "five"
        assert serving.predict(rows).json()["row"] == wrong
    found = requests_of(_evidence(serving, log_artifacts, canary).rows)
    assert (len(found.failed), found.failed.sum()) == (380, 0)
    assert 0 < found.is_canary.sum() < 380


@pytest.mark.parametrize("version", [2, 5])
def test_rows_that_no_version_can_answer_are_no_evidence(
    serve: Serve, log_artifacts: FolderArtifacts, version: int
) -> None:
    """Clients can send as many as they like: refused for their form, and far beyond what a graph can compute."""
    serving = serve(version, canary=CanaryShare(share=0.5, by=("tail",)))
    canary = serving.promote(version if version == 5 else 2, "canary")
    wrong = {"hour": 1e30} if version == 5 else {"hour": "five"}
    for number in range(40):
        assert serving.predict(serving.row(tail=f"N{number}", **wrong)).status_code in (422, 500)
        assert serving.predict([serving.row(tail=f"M{number}", **wrong)]).status_code in (422, 500)
    log = _evidence(serving, log_artifacts, canary)
    assert log.rows.is_empty()


def test_a_client_that_saw_a_side_cannot_make_it_look_bad(
    serve: Serve, log_artifacts: FolderArtifacts
) -> None:
    """It asks once for each entity, reads the role in the answer, and then fails on one side only."""
    serving = serve(canary=CanaryShare(share=0.5, by=("tail",)))
    canary = serving.promote(2, "canary")
    for number in range(60):
        role = serving.predict(serving.row(tail=f"N{number}")).json()["role"]
        for _ in range(3):
            serving.predict(serving.row(tail=f"N{number}", hour="five" if role == "canary" else 5))
    found = requests_of(_evidence(serving, log_artifacts, canary).rows)
    assert (len(found.failed), found.failed.sum()) == (60, 0)


def test_a_row_that_only_one_version_can_answer_is_evidence(
    serve: Serve, log_artifacts: FolderArtifacts
) -> None:
    """The champion cannot compute large hours, the canary can: the champion's errors count, and no answer is lost."""
    serving = serve(5, canary=CanaryShare(share=0.5, by=("tail",)))
    canary = serving.promote(2, "canary")
    for number in range(40):
        serving.predict(serving.row(tail=f"N{number}", hour=1e6))
    found = requests_of(_evidence(serving, log_artifacts, canary).rows)
    assert len(found.failed) == 40
    assert found.failed.tolist() == (~found.is_canary).tolist()


def test_an_entity_counts_once_however_often_it_asks(serve: Serve, log_artifacts: FolderArtifacts) -> None:
    """One entity of the canary that always fails must not decide alone."""
    serving = serve(canary=CanaryShare(share=0.5, by=("tail",)))
    canary = serving.promote(2, "canary")
    for number in range(8):
        for hour in ("five", 5):
            for _ in range(3):
                serving.predict(serving.row(tail=f"N{number}", hour=hour))
    found = _evidence(serving, log_artifacts, canary)
    assert (len(found.rows), len(found.entities), found.repeated) == (8, 8, 16)
    assert not requests_of(found.rows).failed.any(), (
        "the first rows of each, which are wrong, are no evidence"
    )


def test_requests_with_one_id_of_the_client_are_several_requests(
    serve: Serve, log_artifacts: FolderArtifacts
) -> None:
    serving = serve(canary=CanaryShare(share=0.5, by=("tail",)))
    canary = serving.promote(4, "canary")
    for number in range(20):
        sent = serving.predict(serving.row(tail=f"N{number}"), **{"X-Request-Id": "my-service"})
        assert sent.json()["request_id"] == "my-service"
    rows = _evidence(serving, log_artifacts, canary).rows
    assert set(rows["client_id"]) == {"my-service"}
    assert (len(requests_of(rows).failed), rows["request_id"].n_unique()) == (20, 20)


def test_requests_that_find_no_room_are_no_evidence(
    serve: Serve, log_artifacts: FolderArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An equal canary would have errors that the champion, whose queue has no bound, cannot have."""
    monkeypatch.setattr(canaries, "MOST", 0)
    serving = serve(canary=CanaryShare(share=0.5, by=("tail",)))
    canary = serving.promote(2, "canary")
    answered = [serving.predict(serving.row(tail=f"N{i}")).json() for i in range(20)]
    assert {one["role"] for one in answered} == {"production"}
    found = _evidence(serving, log_artifacts, canary).rows
    assert 0 < len(found) < 20
    assert set(found["assigned"]) == {"production"}
    busy = 20 - len(found)
    counted = f'ml_assets_serving_canary_busy_total{{model="{MODEL}",version="2"}} {busy:.1f}'
    assert counted in serving.client.get("/metrics").text


class _Slow:
    """A runtime that takes 0.1 s for a row."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def predict_row(self, row: Any) -> Any:
        time.sleep(0.1)
        return self._runtime.predict_row(row)


def test_the_bound_of_the_canary_judges_the_champion_too(
    serve: Serve, log_artifacts: FolderArtifacts
) -> None:
    """Otherwise an equal canary on a slow machine would fail always, and the champion never."""
    serving = serve(canary=CanaryShare(share=0.5, by=("tail",)), limits=Limits(canary_seconds=0.05))
    canary = serving.promote(2, "canary")
    roles = serving.parts.watch.served(MODEL)
    assert roles is not None
    assert roles.canary is not None
    assert roles.production is not None
    slow: list[Any] = [replace(one, runtime=_Slow(one.runtime)) for one in (roles.production, roles.canary)]
    serving.parts.watch._served[MODEL] = replace(  # pyright: ignore[reportPrivateUsage]
        roles, production=slow[0], canary=slow[1]
    )
    answered = [serving.predict(serving.row(tail=f"N{i}")).json() for i in range(10)]
    assert {one["role"] for one in answered} == {"production"}
    found = requests_of(_evidence(serving, log_artifacts, canary).rows)
    assert len(found.failed) > 0
    assert found.failed.all()
    assert not found.is_canary.all()


class _Held:
    """A runtime that predicts only after `release` is set."""

    def __init__(self, runtime: Any, release: threading.Event) -> None:
        self._runtime, self._release = runtime, release

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def predict_row(self, row: Any) -> Any:
        assert self._release.wait(200), "a request waits for the canary"
        return self._runtime.predict_row(row)


def test_a_canary_that_hangs_holds_up_no_request(serve: Serve, log_artifacts: FolderArtifacts) -> None:
    """Production answers all of them, more than the canary has threads, and each counts as the canary's error."""
    release = threading.Event()
    serving = serve(canary=CanaryShare(share=0.5, by=("tail",)), limits=Limits(canary_seconds=0.5))
    canary = serving.promote(2, "canary")
    roles = serving.parts.watch.served(MODEL)
    assert roles is not None
    assert roles.canary is not None
    held: Any = _Held(roles.canary.runtime, release)
    hanging = replace(roles, canary=replace(roles.canary, runtime=held))
    serving.parts.watch._served[MODEL] = hanging  # pyright: ignore[reportPrivateUsage]
    try:
        answered = [serving.predict(serving.row(tail=f"N{i}")).json() for i in range(20)]
    finally:
        release.set()
    assert {one["role"] for one in answered} == {"production"}
    too_slow = int(serving.metric("errors_total", role="canary", kind="CanaryTooSlow"))
    found = _evidence(serving, log_artifacts, canary).rows
    assert 0 < too_slow < 20
    assert (
        found.filter(role="canary")["error"].str.starts_with("CanaryTooSlow: no answer within 0.5 s").sum()
        == too_slow
    )
    assert len(found) == 20
