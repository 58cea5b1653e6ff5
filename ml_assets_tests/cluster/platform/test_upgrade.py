"""Upgrades of the team's chart: an image whose definitions do not load is refused, and the team goes on."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from deployment.testbed.cluster.commands import CommandFailed
from ml_assets_tests.cluster.cluster_environment import waited_for
from ml_assets_tests.cluster.platform.team_in_pods import PARTS, TeamInPods

pytestmark = pytest.mark.timeout(1200)

FAULT = "ml_assets/defs/broken/defs.yaml:6 attributes.function: cannot import"
SECONDS = 120.0
"""A minute, on a busy machine."""


def test_an_image_that_does_not_load_is_refused_and_the_team_goes_on(
    team: TeamInPods, images: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The log of the Job `prepare` names file, line and key. No part of the platform is restarted."""
    before = {part: team.ready_pod(part) for part in PARTS}
    values = team.values.read_text()

    def said() -> str:
        try:
            return team.cluster.kubectl("logs", "job/prepare", "--all-pods=true")
        except CommandFailed:  # no pod of it yet
            return ""

    try:
        with ThreadPoolExecutor(1) as pool:
            upgrade = pool.submit(team.change, {"images": {"platform": images["broken"]}})
            took = waited_for(lambda: FAULT in said(), "the fault in the log", SECONDS, said)
            with pytest.raises(CommandFailed, match="prepare"):
                upgrade.result()
    finally:
        team.values.write_text(values)
    assert {part: team.ready_pod(part) for part in PARTS} == before
    with team.webserver() as dagster:
        assert dagster.why_not_ready() == ""
    team.change({})
    with capsys.disabled():
        print(f"\ndefinitions that do not load: named {took:.0f} s after the begin of the upgrade")
