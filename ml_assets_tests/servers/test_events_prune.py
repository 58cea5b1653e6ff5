"""Pruning of Dagster's event log in PostgreSQL: the same answers, and smaller tables."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from ml_assets.extras.event_pruning.prune import find_prunable, prune_events
from ml_assets_tests.extras.pruned_histories import (
    GRAPH,
    answers,
    opened,
    short_history,
    without_stored_statuses,
)
from ml_assets_tests.servers.running_servers import RunningServers


def test_answers_stay_and_tables_shrink(
    servers: RunningServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = servers.settings(tmp_path)
    monkeypatch.setenv("ML_ASSETS_DAGSTER_URL", servers.variables(settings)["ML_ASSETS_DAGSTER_URL"])
    with opened(settings) as instance:
        short_history(instance)
        before, now = answers(instance), datetime.now(UTC)
        found = find_prunable(instance, GRAPH, now)
        done = prune_events(instance, GRAPH, now)
        assert done.rows == found.rows
        assert done.rows["events"] > 50
        assert done.after < done.before
        assert answers(without_stored_statuses(instance)) == before
        assert find_prunable(instance, GRAPH, now).rows["events"] == 0
