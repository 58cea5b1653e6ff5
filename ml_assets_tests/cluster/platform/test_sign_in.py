"""The proxy in front of the webserver, in pods: an upgrade of the team's chart starts it, two people use it with their
roles, and nobody else reaches the pages.
"""

import re

import pytest

from ml_assets_tests.cluster.cluster_environment import waited_for
from ml_assets_tests.cluster.platform.conftest import LOCATION
from ml_assets_tests.cluster.platform.team_in_pods import TeamInPods

pytestmark = pytest.mark.timeout(1800)

WEEK = "2023-01-02"
TABLE = "datasets/sales"
WHO = """
import sys
from resources.platform import Platform
from resources.settings import Settings
print(Platform(Settings()).ledger.launches.of(sys.argv[1]).by.name)
"""
"""Program that prints the person who launched a run."""


def test_two_people_work_behind_the_proxy_that_alone_reaches_the_pages(team: TeamInPods) -> None:
    """A viewer is refused by name; an operator's run publishes a week in its pod, and the ledger knows the operator."""
    ada = token_in(team.command("accounts", "add", "ada", "--administrator"))
    bob, eve = (token_in(team.command("accounts", "add", one, token=ada)) for one in ("bob", "eve"))
    team.command("accounts", "role", "bob", "operator", "--reason", "runs the tables", token=ada)

    team.change({"proxy": {"enabled": True}, "settings": {"ML_ASSETS_UI_URL": "http://127.0.0.1:3000"}})

    tags = {"dagster/partition": WEEK}
    with (
        team.pages("proxy", token=eve) as pages,
        pytest.raises(AssertionError, match="needs the role operator"),
    ):
        pages.launch(LOCATION, [TABLE], tags)
    with team.pages("proxy", token=bob) as pages:
        run_id = pages.launch(LOCATION, [TABLE], tags)
        assert pages.wait_for_run(run_id).status == "SUCCESS", team.about()
    assert team.python(WHO, run_id) == "bob\n"
    address = team.cluster.pod(team.ready_pod("webserver"))["status"]["podIP"]
    places = {"webserver:3000", f"{address}:3000"}
    assert team.reached_from(team.ready_pod("proxy"), sorted(places)) == places
    other = team.idle_pod("uninvited", {}, f"node{team.cluster.cluster.layout.numbers[0]}")
    waited_for(lambda: not team.reached_from(other, sorted(places)), "the webserver to be closed", 120)
    team.cluster.kubectl("delete", "pod", "--wait=false", other)


def token_in(said: str) -> str:
    """Return the token that `accounts add` prints once."""
    (token,) = re.findall(r"\bmla_[\w-]+", said)
    return token
