"""`ml-assets serve --online` over Redis: the same answers as over SQLite, and 503 while Redis is away."""

from ml_assets_tests.release.conftest import rows, store
from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.servers.test_online_redis import store_on
from ml_assets_tests.serving.conftest import Serve, log_artifacts, serve, versions
from ml_assets_tests.serving.online_rows import filled

__all__ = ["log_artifacts", "rows", "serve", "store", "versions"]


def test_redis_answers_requests_that_name_an_entity(servers: RunningServers, serve: Serve) -> None:
    """While Redis is frozen, requests with all columns are answered."""
    serving = serve(online=filled(store_on(servers, patience_seconds=0.3)))
    said = serving.predict([{"tail": "N1"}, {"tail": "N2"}]).json()["predictions"]
    assert all(one["online"]["columns"] for one in said)
    unknown = serving.predict({"tail": "N99"})
    assert (unknown.status_code, unknown.json()["field"]) == (422, "hour")
    servers.freeze("redis")
    try:
        refused = serving.predict({"tail": "N1"})
        assert (refused.status_code, "does not answer" in refused.json()["message"]) == (503, True)
        assert serving.predict(serving.row()).status_code == 200
    finally:
        servers.thaw("redis")
    assert serving.predict({"tail": "N1"}).json()["prediction"] == said[0]["prediction"]
