"""A table in another repository of a real lakeFS as a source of a dataset, by the platform's keys and by others."""

from pathlib import Path
from typing import Any

import pytest

from ml_assets.components import Dataset
from ml_assets_tests.components.installation import Installation, component, failure_of
from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.sources import sales
from ml_assets_tests.sources.sales import DATASET, DAYS, SALES, rows

_EMBEDDED = dict.fromkeys(("artifacts_url", "tracking_uri", "ledger_url", "dagster_url"))
BOUGHT = "datasets/bought"


@pytest.mark.parametrize("has_own_keys", [False, True])
def test_a_table_of_another_repository_lands(
    servers: RunningServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_own_keys: bool
) -> None:
    others = servers.settings(tmp_path / "other", **_EMBEDDED)
    other = Installation(
        tmp_path / "other",
        components=[component(Dataset, DATASET, source={"function": f"{sales.__name__}.read"})],
        settings=others,
    )
    assert other.platform.make_lake_ready()
    assert other.run(SALES, partition=DAYS[0], last=DAYS[2]).success
    source: dict[str, Any] = {"kind": "table", "table": SALES, "lake": f"lakefs://{others.environment}"}
    mine = servers.settings(tmp_path / "here", **_EMBEDDED)
    if has_own_keys:  # the own lake is embedded
        source |= {"url_env": "SHOP", "access_key_id_env": "SHOP_KEY", "secret_access_key_env": "SHOP_SECRET"}
        monkeypatch.setenv("SHOP", servers.record.url("lakefs"))
        monkeypatch.setenv("SHOP_KEY", servers.record.lakefs_key)
        monkeypatch.setenv("SHOP_SECRET", servers.record.lakefs_secret)
        mine = mine.model_copy(update=dict.fromkeys(("lake_url", "lake_storage", "lake_access_key_id")))
    named = [component(Dataset, DATASET | {"name": "bought"}, source=source)]
    here = Installation(tmp_path / "here", components=named, settings=mine)
    assert here.platform.make_lake_ready()
    result = here.run(BOUGHT, partition=DAYS[0], last=DAYS[2])
    assert result.success, failure_of(result)
    for day in DAYS[:3]:
        assert here.main.scan(BOUGHT, [day]).collect().equals(rows(day))
    before = here.main.digests(BOUGHT)
    lost = [
        component(Dataset, DATASET | {"name": "bought"}, source=source | {"lake": "lakefs://no-such-shop"})
    ]
    said = failure_of(here.declared_as(lost).run(BOUGHT, partition=DAYS[0]))
    assert "no-such-shop" in said
    assert "Check source.lake" in said
    if has_own_keys:
        monkeypatch.setenv("SHOP_SECRET", "a-wrong-secret")
        said = failure_of(here.run(BOUGHT, partition=DAYS[0]))
        assert "rights of its keys" in said
        assert "a-wrong-secret" not in said
    assert here.main.digests(BOUGHT) == before
