"""Live performance of a model that is only served over HTTP: from `defs.yaml` and a log of requests to figures."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest

from ml_assets.use.serving.log_retention import log_marks
from ml_assets.use.serving.request_log import LoggedRow, RequestLog, day_folder, days_of
from ml_assets_tests.components.canary_home import CANARY, DAYS, CanaryHome, begun, with_new_canary
from ml_assets_tests.components.installation import (
    Installation,
    failure_of,
    materialized,
    readings_components,
)
from ml_assets_tests.components.readings_pipeline import FEATURES, MODEL

LIVE = f"{MODEL}/live"
FIRST, SECOND, QUIET = DAYS
Answer = Callable[[float], dict[str, Any]]


class RequestsLogged:
    """The home, declared with the log as the source, and servers that log what a test says."""

    def __init__(self, home: CanaryHome, installation: Installation) -> None:
        self.home, self.installation = home, installation
        self.requests = 0

    def rows(self, day: str) -> list[dict[str, Any]]:
        return self.installation.main.scan(FEATURES, [day]).collect().to_dicts()

    def log(self, day: str, answer: Answer, *, share: float = 1.0, machines: tuple[str, ...] = ()) -> int:
        """Log an answer for each row of the day's features, as a server does that logs this share of requests."""
        begin = datetime.fromisoformat(f"{day}T12:00:00+00:00")
        champion = self.home.champion
        rows = [row for row in self.rows(day) if not machines or row["machine"] in machines]
        with RequestLog(self.installation.platform.artifacts, share=share) as log:
            for row in rows:
                self.requests += 1
                logged: dict[str, Any] = {
                    "request_id": f"{self.requests:08d}",
                    "place": 0,
                    "at_us": int(begin.timestamp() * 1e6) + self.requests,
                    "model": MODEL,
                    "version": int(champion.version),
                    "bundle_digest": champion.bundle_digest,
                    "role": "production",
                    "assigned": "production",
                    "request_rows": 1,
                    "entity": None,
                    "row": json.dumps({"at": row["at"].isoformat(), "machine": row["machine"]}).encode(),
                    "latency_us": 900,
                }
                log.add([LoggedRow(**(logged | answer(row["made"])))])
        return len(rows)

    def measure(self, day: str) -> tuple[str, dict[str, Any]]:
        """Materialize the asset; return the page's description and facts."""
        result = self.installation.run(LIVE, partition=day)
        assert result.success, failure_of(result)
        page = materialized(result, LIVE)[day]
        return page.description or "", {name: one.value for name, one in page.metadata.items()}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> RequestsLogged:
    installation, exported = begun(tmp_path_factory.mktemp("live"))
    home = with_new_canary(installation, exported)
    components = readings_components(
        pipeline={
            "release": {"canary": CANARY},
            "scoring": {"live_source": "request_log"},
            "evaluation": _sliced(),
        }
    )
    return RequestsLogged(home, installation.declared_as(components))


def _sliced() -> dict[str, Any]:
    from ml_assets_tests.components.readings_pipeline import PIPELINE

    return PIPELINE["evaluation"] | {"slices": ["machine"], "min_slice_rows": 4}


def test_the_asset_needs_features_and_no_table_of_predictions(served: RequestsLogged) -> None:
    graph = served.installation.defs.resolve_asset_graph()
    assert graph.get(dg.AssetKey(LIVE.split("/"))).parent_keys == {dg.AssetKey(FEATURES.split("/"))}


def test_champion_and_canary_are_measured_apart_by_slice(served: RequestsLogged) -> None:
    canary = {
        "role": "canary",
        "assigned": "canary",
        "version": int(served.home.canary.version),
        "bundle_digest": served.home.canary.bundle_digest,
    }
    count = served.log(FIRST, lambda label: {"prediction": [label + 1]})
    served.log(FIRST, lambda label: {"prediction": [label - 3]} | canary, machines=("drill",))
    said, page = served.measure(FIRST)
    of_canary = sum(row["machine"] == "drill" for row in served.rows(FIRST))
    assert (page["production rows"], page["production labelled"]) == (count, count)
    assert (page["canary rows"], page["canary labelled"]) == (of_canary, of_canary)
    assert page["production mae"] == pytest.approx(1, abs=1e-3)
    assert page["canary mae"] == pytest.approx(3, abs=1e-3)
    slices = [row.data for row in page["slices"].records]
    assert {(one["slice"], one["role"]) for one in slices} >= {
        ("machine=drill", "production"),
        ("machine=drill", "canary"),
    }
    assert all(one["mae"].startswith("1 (") for one in slices if one["role"] == "production")
    assert "about this partition only" in page["summary"]
    assert "![slices](data:image/png" in page["summary"]
    assert "no drift yet" in said


def test_a_sample_is_weighted_by_the_rows_it_stands_for(served: RequestsLogged) -> None:
    """One server logs every request, another a quarter. Rows of the second one count four times."""
    drill, others = ("drill",), tuple({row["machine"] for row in served.rows(SECOND)} - {"drill"})
    sampled = served.log(SECOND, lambda label: {"prediction": [label + 2]}, share=0.25, machines=drill)
    whole = served.log(SECOND, lambda label: {"prediction": [label]}, machines=others)
    repeated = served.log(SECOND, lambda label: {"prediction": [label + 9]}, machines=others)
    said, page = served.measure(SECOND)
    assert page["production rows"] == sampled + whole
    assert page["production stands for"] == 4 * sampled + whole
    assert page["production mae"] == pytest.approx(2 * 4 * sampled / (4 * sampled + whole), rel=1e-3)
    assert f"{repeated} further rows repeat a row that was answered before" in said
    assert "against 1 earlier partition; no comparison with its holdout, because" in said


def test_rows_without_key_and_other_errors_are_named(served: RequestsLogged) -> None:
    served.log(QUIET, lambda _: {"prediction": [1.0], "row": b'{"machine":"drill"}'}, machines=("drill",))
    served.log(QUIET, lambda _: {"prediction": None, "error": "GraphFailed: boom"}, machines=("drill",))
    said, page = served.measure(QUIET)
    assert page["production labelled"] == 0
    assert "do not name at, a part of the primary key of the feature table" in said
    assert "rows of requests got no prediction of their own version" in said


def test_figures_stay_when_the_log_is_deleted(served: RequestsLogged) -> None:
    artifacts = served.installation.platform.artifacts
    before = served.measure(SECOND)[1]
    day = datetime.fromisoformat(SECOND).replace(tzinfo=UTC).date()
    files = days_of(artifacts, MODEL)[day]
    assert all(map(log_marks(artifacts, MODEL, SECOND)[SECOND].has, files))
    artifacts.remove(day_folder(MODEL, day), list(files)[:-1])
    said, after = served.measure(SECOND)
    assert after["production mae"] == before["production mae"]
    assert "the log of this partition was deleted: these are the figures of" in said
    artifacts.remove(day_folder(MODEL, day))
    assert served.measure(SECOND)[1]["production rows"] == before["production rows"]
