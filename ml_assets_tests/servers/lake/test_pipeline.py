"""A pipeline does not notice which lake it stands on: the same training set, model figures and links from both."""

from dataclasses import dataclass
from typing import Any

import pytest

from ml_assets.data.tables.history.log import unaudited
from ml_assets.model.evaluation.metrics.metrics import SERVING_NAMES
from ml_assets_tests.components.installation import STAGES, Installation, failure_of, materialized, versions
from ml_assets_tests.components.readings_pipeline import FEATURES, READINGS, WINDOW, days
from ml_assets_tests.servers.running_servers import RunningServers

TRAINING_SET, CHECKPOINT, EVALUATION, REGISTERED = STAGES
FIRST, *_, LAST, DAY = days(WINDOW + 1)


@dataclass(frozen=True)
class LakeRun:
    """One lake, and what training on it gave."""

    installation: Installation
    versions: dict[str, str]
    """Asset → data version."""
    facts: dict[str, dict[str, Any]]
    """Asset → metadata as plain values."""


def train(installation: Installation) -> LakeRun:
    for line in installation.platform.make_lake_ready():
        assert line
    found_versions: dict[str, str] = {}
    found_facts: dict[str, dict[str, Any]] = {}
    for table in (READINGS, FEATURES):
        result = installation.run(table, partition=FIRST, last=DAY)
        assert result.success, failure_of(result)
        found_versions |= {f"{table} {day}": version for day, version in versions(result, table).items()}
        facts = materialized(result, table)[DAY].metadata
        found_facts[table] = {name: value.value for name, value in facts.items()}
    result = installation.train(DAY)
    assert result.success, failure_of(result)
    for stage in STAGES:
        found_versions[stage] = versions(result, stage)[DAY]
        facts = materialized(result, stage)[DAY].metadata
        found_facts[stage] = {name: value.value for name, value in facts.items()}
    return LakeRun(installation, found_versions, found_facts)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> LakeRun:
    return train(Installation(tmp_path_factory.mktemp("embedded") / "home"))


@pytest.fixture(scope="module")
def served(servers: RunningServers, tmp_path_factory: pytest.TempPathFactory) -> LakeRun:
    """Return the same installation with its lake on the lakeFS server."""
    home = tmp_path_factory.mktemp("served") / "home"
    others = dict.fromkeys(("artifacts_url", "tracking_uri", "ledger_url", "dagster_url"))
    return train(Installation(home, settings=servers.settings(home, ui_url="http://ui.test", **others)))


def test_the_same_training_set_and_the_same_model_from_both(embedded: LakeRun, served: LakeRun) -> None:
    assert served.versions == embedded.versions
    for name in ("snapshot", "fingerprint", "schema_hash", "fitted_digest", "split_config_hash"):
        assert served.facts[TRAINING_SET][name] == embedded.facts[TRAINING_SET][name]
    figures = {
        name: value
        for name, value in embedded.facts[EVALUATION].items()
        if isinstance(value, int | float) and name not in SERVING_NAMES  # each run measures latency anew
    }
    assert figures
    assert {name: served.facts[EVALUATION][name] for name in figures} == figures


def test_pages_link_the_commit_and_the_commit_links_the_run(served: LakeRun, embedded: LakeRun) -> None:
    lake = served.installation.platform.lake
    for asset in (READINGS, FEATURES, TRAINING_SET, REGISTERED):
        commit_id = served.facts[asset]["lake/commit"]
        page = served.facts[asset]["lake/page"]
        assert page == lake.commit_url(commit_id)
        assert page.startswith(f"{served.installation.settings.lake_url}/repositories/")
        run = lake.read_commit(commit_id).metadata["::lakefs::Dagster::url[url:ui]"]
        assert run.startswith("http://ui.test/runs/")
        assert "lake/page" not in embedded.facts[asset]


def test_everything_on_main_was_audited(served: LakeRun) -> None:
    assert served.installation.platform.audit_hook_is_current()
    assert unaudited(served.installation.platform.lake, 1_000) == []
    branches = served.installation.platform.lake.branches()
    assert [name for name in branches if not name.startswith("keep-")] == ["main"]
