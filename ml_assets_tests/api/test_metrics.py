"""Metrics of the platform: what Prometheus reads is what Dagster, the ledger and this server say."""

from datetime import datetime

import dagster as dg
import polars as pl
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.declared import NOTHING_DECLARED
from ml_assets.data.tables.publish.publish import publish
from ml_assets.data.tables.spec import Incoming, PublishingRun
from ml_assets.extras.api import metrics as api_metrics
from ml_assets.extras.api.metrics import late_partitions
from ml_assets.model.release.standing import CANARY, PRODUCTION
from ml_assets_tests.api.conftest import ServedApi
from ml_assets_tests.serving.released import MODEL
from ml_assets_tests.tables import orders_table

Series = dict[tuple[str, ...], float]


def series(api: ServedApi) -> Series:
    """Return (name, values of labels in their order) → value, as Prometheus reads them."""
    answer = api.ask("viewer", "GET", "/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (one.name, *(one.labels[name] for name in one.labels if name != "le")): one.value
        for family in text_string_to_metric_families(answer.text)
        for one in family.samples
        if not one.name.endswith("_bucket")
    }


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_metrics, "FRESH_SECONDS", 0.0)


def test_a_run_counts_for_what_it_makes_once_it_ended(api: ServedApi) -> None:
    before = series(api)
    failed = ("ml_assets_runs_ended_total", "datasets/sales", "failed")
    assert before[failed] == 0, "a series that begins with the first failure shows no increase"
    instance = api.context.project.instance
    run = dg.DagsterRun(job_name="any", asset_selection=frozenset({dg.AssetKey(["datasets", "sales"])}))
    instance.add_run(run)
    waiting = series(api)
    assert waiting["ml_assets_runs", "queued"] == before["ml_assets_runs", "queued"] + 1
    instance.report_run_failed(run)
    after = series(api)
    assert (after[failed], after["ml_assets_runs", "queued"]) == (1, before["ml_assets_runs", "queued"])
    assert series(api)[failed] == 1, "not counted twice"


def test_a_rejected_partition_is_seen(api: ServedApi) -> None:
    name, platform = "datasets/sales", api.platform
    labels = ("ml_assets_rejected_partitions", name)
    before = series(api)[labels]
    run = PublishingRun(run_id="rejected", url="http://127.0.0.1:3000/runs/rejected")
    broken = [Incoming(key="2023-06-05", data=pl.DataFrame({"none": ["of the columns"]}))]
    publish(
        platform.lake,
        platform.ledger,
        api.context.project.declared.table(name),
        broken,
        run,
        NOTHING_DECLARED,
    )
    found = series(api)
    assert found[labels] == before + 1
    assert ("ml_assets_late_partitions", name) not in found, "the table ends in 2024"


@pytest.mark.parametrize(
    ("now", "late"),
    [
        ("2013-01-08T23:00+00:00", 2),  # 6 and 7 January are over
        ("2013-01-06T00:00+00:00", 0),
        ("2013-01-07T00:30+09:00", 0),  # it is 6 January in UTC
    ],
)
def test_a_partition_is_late_once_it_is_over(now: str, late: int) -> None:
    assert late_partitions(orders_table.spec(), "2013-01-05", datetime.fromisoformat(now)) == late


@pytest.mark.parametrize(
    ("now", "late"),
    [
        ("2013-01-05T05:30+00:00", 0),  # hour 4 is over, hour 5 is not
        ("2013-01-05T06:00+00:00", 1),
        ("2013-01-05T20:30+00:00", 15),
        ("2013-01-06T05:30+09:00", 15),  # it is half past 20 in UTC
    ],
)
def test_an_hour_is_late_as_soon_as_it_is_over(now: str, late: int) -> None:
    """Not only on the next day."""
    table = orders_table.spec(cadence=Cadence("hourly", orders_table.FIRST))
    assert late_partitions(table, "2013-01-05T04", datetime.fromisoformat(now)) == late


def test_requests_are_counted_by_route_without_the_names_in_it(api: ServedApi) -> None:
    route = "/api/v1/models/{name}/versions"
    labels = ("ml_assets_api_requests_total", "GET", route)
    before = series(api)
    api.ask("viewer", "GET", "/models/store_demand/versions")
    api.ask("viewer", "GET", "/models/no_such_model/versions")
    after = series(api)
    assert after[*labels, "200"] == before.get((*labels, "200"), 0) + 1
    assert after[*labels, "404"] == before.get((*labels, "404"), 0) + 1
    assert after["ml_assets_api_request_seconds_count", "GET", route] >= 2


def test_a_part_that_is_away_hides_no_other(api: ServedApi) -> None:
    """If a scrape failed, no alert would see that the API fails meanwhile."""
    parts = ("runs", "tables", "models")
    assert [series(api)["ml_assets_part_answers", part] for part in parts] == [1, 1, 1]
    home = api.context.project.settings.home
    for file, away in (("dagster/history/runs.db", {"runs"}), ("ledger.db", {"tables", "models"})):
        (home / file).rename(home / "away")
        try:
            found = series(api)
        finally:
            (home / "away").replace(home / file)
        assert {part for part in parts if not found["ml_assets_part_answers", part]} == away
        assert (("ml_assets_runs", "queued") in found) == ("runs" not in away)
        assert any(name == "ml_assets_api_requests_total" for name, *_ in found)
    assert [series(api)["ml_assets_part_answers", part] for part in parts] == [1, 1, 1]


def test_versions_in_their_roles_are_series(api: ServedApi) -> None:
    found = series(api)
    for role in (PRODUCTION, CANARY):
        held = api.platform.ledger.models.in_production(MODEL, role)
        version = found.get(("ml_assets_released_version", MODEL, role))
        assert version == (None if held is None else float(held.version))
