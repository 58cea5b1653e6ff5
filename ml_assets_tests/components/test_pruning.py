"""Pruning by Dagster's daemon where trainings run on a cluster; none where they end with their launcher."""

from pathlib import Path

import pytest

from ml_assets.assembly import build_defs
from resources.platform import Platform
from resources.settings import Settings


@pytest.mark.parametrize(("launcher", "prunes"), [("local", False), ("kubernetes", True)])
def test_the_daemon_prunes_where_pods_could_be_left(tmp_path: Path, launcher: str, prunes: bool) -> None:
    defs = build_defs(Settings.model_validate({"home": tmp_path, "launcher": launcher}))
    assert ("prune_trainings" in {sensor.name for sensor in defs.sensors or ()}) is prunes


def test_processes_of_this_machine_leave_nothing_to_prune(tmp_path: Path) -> None:
    assert Platform(Settings(home=tmp_path)).launcher.prune() == []
