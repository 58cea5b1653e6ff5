"""Record of requests: the log that the server writes, and its shadows."""

from datetime import UTC, datetime

import orjson
import polars as pl

from ml_assets.model.release.bundle_store import Bundle
from ml_assets.use.serving.canary import LENGTH, ShadowJob, ShadowQueue
from ml_assets.use.serving.request_log import read_requests
from ml_assets.use.serving.watch import CanaryShare
from ml_assets_tests.serving.conftest import MODEL, Serve, Serving
from resources.artifacts import FolderArtifacts


def _log_of(serving: Serving, artifacts: FolderArtifacts) -> pl.DataFrame:
    """End the server and return its log of today."""
    serving.stop()
    return read_requests(artifacts, MODEL, datetime.now(UTC).date())


def test_rows_are_logged_with_prediction_version_entity_and_error(
    serve: Serve, log_artifacts: FolderArtifacts
) -> None:
    serving = serve(canary=CanaryShare(share=0.5, by=("carrier",)))
    serving.promote(4, "canary")
    entity = serving.of_canary(4)
    row = serving.row(carrier=entity, note="extra columns stay")
    first = serving.predict(row).json()
    serving.predict([{**row, "extra": 2.0}, {**row, "hour": "five"}])
    log = _log_of(serving, log_artifacts)
    said = log.select("role", "version", "place", "error").rows()
    wide = serving.bundles[3].digest
    assert [(role, version, place, error is not None) for role, version, place, error in said] == [
        ("canary", 4, 0, True),  # it reads `extra`; production answers
        ("production", 1, 0, False),
        ("canary", 4, 0, False),
        ("canary", 4, 1, True),
        ("production", 1, 1, True),
    ]
    assert said[0][3].startswith("RequestRefused: column 'extra' is missing: send a number or a boolean")
    answered = log.row(1, named=True)
    assert orjson.loads(answered["row"]) == row
    assert (answered["request_id"], answered["entity"]) == (first["request_id"], f'["{entity}"]')
    assert answered["prediction"] == [first["prediction"]]
    assert answered["latency_us"] > 0
    assert log["bundle_digest"].to_list()[0] == wide


def test_a_canary_without_a_share_is_a_shadow(serve: Serve, log_artifacts: FolderArtifacts) -> None:
    serving = serve()
    serving.promote(2, "canary")
    answered = serving.predict([serving.row(), serving.row(hour=3)]).json()
    assert {one["version"] for one in answered["predictions"]} == {1}
    log = _log_of(serving, log_artifacts).sort("role", "place")
    assert log.select("role", "version", "place").rows() == [
        ("production", 1, 0),
        ("production", 1, 1),
        ("shadow", 2, 0),
        ("shadow", 2, 1),
    ]
    assert log["prediction"].to_list()[:2] == log["prediction"].to_list()[2:]


def test_a_version_by_number_is_a_shadow_and_its_errors_reach_nobody(
    serve: Serve, versions: list[Bundle], log_artifacts: FolderArtifacts
) -> None:
    serving = serve(shadows=((4, versions[3].digest),))
    assert serving.predict(serving.row()).json()["version"] == 1
    assert serving.predict(serving.row(extra=1.0)).json()["version"] == 1
    assert serving.client.get("/models").json()[MODEL]["shadows"][0]["version"] == 4
    log = _log_of(serving, log_artifacts).filter(role="shadow")
    assert log["version"].to_list() == [4, 4]
    assert [error is None for error in log["error"]] == [False, True]


def test_shadows_that_find_no_room_are_dropped_and_counted() -> None:
    queue = ShadowQueue()
    done: list[object] = []
    for _ in range(LENGTH + 3):
        queue.add(ShadowJob((), (), lambda *found: done.append(found)))
    assert queue.dropped == 3
    queue.start()
    queue.stop()
