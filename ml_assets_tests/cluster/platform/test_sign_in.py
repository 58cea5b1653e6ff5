"""The proxy in front of the webserver and the API beside it, in pods: an upgrade of the team's chart starts each, two
people use it with their roles, and nobody else reaches it.
"""

import json
import re

import pytest

from ml_assets_tests.cluster.cluster_environment import waited_for
from ml_assets_tests.cluster.platform.conftest import CLIENTS, LOCATION
from ml_assets_tests.cluster.platform.team_in_pods import TeamInPods

pytestmark = pytest.mark.timeout(1800)

WEEK, NEXT_WEEK = "2023-01-02", "2023-01-09"
TABLE = "datasets/sales"
WHO = """
import sys
from resources.platform import Platform
from resources.settings import Settings
print(Platform(Settings()).ledger.launches.of(sys.argv[1]).by.name)
"""
"""Program that prints the person who launched a run."""


SEND = """
import json, sys, urllib.error, urllib.request
url, token, document = sys.argv[1:]
headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
try:
    answer = urllib.request.urlopen(urllib.request.Request(url, document.encode(), headers), timeout=60)
except urllib.error.HTTPError as error:
    answer = error
print(json.dumps({"status": answer.status, **json.load(answer)}))
"""
"""Program that sends a document to the API, and prints the answer."""


@pytest.fixture(scope="module")
def people(team: TeamInPods) -> dict[str, str]:
    """Tokens of an operator and of a viewer, by name."""
    ada = token_in(team.command("accounts", "add", "ada", "--administrator"))
    tokens = {one: token_in(team.command("accounts", "add", one, token=ada)) for one in ("bob", "eve")}
    team.command("accounts", "role", "bob", "operator", "--reason", "runs the tables", token=ada)
    return tokens


def test_two_people_work_behind_the_proxy_that_alone_reaches_the_pages(
    team: TeamInPods, people: dict[str, str]
) -> None:
    """A viewer is refused by name; an operator's run publishes a week in its pod, and the ledger knows the operator."""
    team.change({"proxy": {"enabled": True}, "settings": {"ML_ASSETS_UI_URL": "http://127.0.0.1:3000"}})

    tags = {"dagster/partition": WEEK}
    with (
        team.pages("proxy", token=people["eve"]) as pages,
        pytest.raises(AssertionError, match="needs the role operator"),
    ):
        pages.launch(LOCATION, [TABLE], tags)
    with team.pages("proxy", token=people["bob"]) as pages:
        run_id = pages.launch(LOCATION, [TABLE], tags)
        assert pages.wait_for_run(run_id).status == "SUCCESS", team.about()
    assert team.python(WHO, run_id) == "bob\n"
    address = team.cluster.pod(team.ready_pod("webserver"))["status"]["podIP"]
    places = {"webserver:3000", f"{address}:3000"}
    assert team.reached_from(team.ready_pod("proxy"), sorted(places)) == places
    other = team.idle_pod("uninvited", {}, f"node{team.cluster.cluster.layout.numbers[0]}")
    waited_for(lambda: not team.reached_from(other, sorted(places)), "the webserver to be closed", 120)
    team.cluster.kubectl("delete", "pod", "--wait=false", other)


def test_a_program_launches_at_the_api_from_a_pod_of_the_ingress_alone(
    team: TeamInPods, people: dict[str, str], client: str
) -> None:
    """A viewer's launch is refused; an operator's run publishes a week in its pod, Dagster's pages show it, and the
    ledger knows the operator.
    """
    team.change({"api": {"enabled": True}})
    team.ready_pod("api")

    url = f"http://api.{team.cluster.namespace}.svc.cluster.local:3002/api/v1/pipelines/runs"
    document = json.dumps({"target": TABLE, "partitions": NEXT_WEEK})
    send = [f"--namespace={CLIENTS}", "exec", client, "--", "python", "-c", SEND, url]
    refused = json.loads(team.cluster.cluster.kubectl(*send, people["eve"], document))
    assert (refused["status"], refused["code"]) == (403, "role_needed"), refused
    launched = json.loads(team.cluster.cluster.kubectl(*send, people["bob"], document))
    assert launched["status"] == 202, launched
    with team.webserver() as dagster:
        run = dagster.wait_for_run(launched["id"])
        assert run.status == "SUCCESS", f"{dagster.messages(run.id)[-3000:]} {team.about()}"
        assert run.tags["dagster/partition"] == NEXT_WEEK
    assert len(team.run_pods(run.id)) == 1
    assert team.python(WHO, run.id) == "bob\n"
    other = team.idle_pod("uninvited-of-api", {}, f"node{team.cluster.cluster.layout.numbers[0]}")
    waited_for(lambda: not team.reached_from(other, ["api:3002"]), "the API to be closed", 120)
    team.cluster.kubectl("delete", "pod", "--wait=false", other)


def token_in(said: str) -> str:
    """Return the token that `accounts add` prints once."""
    (token,) = re.findall(r"\bmla_[\w-]+", said)
    return token
