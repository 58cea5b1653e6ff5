"""Pods of predictions, which an upgrade of the team's chart starts: they answer clients of an ingress alone."""

import json
import math

import pytest

from ml_assets_tests.cluster.cluster_environment import waited_for
from ml_assets_tests.cluster.platform.conftest import CLIENTS, LOCATION
from ml_assets_tests.cluster.platform.team_in_pods import TeamInPods
from ml_assets_tests.cluster.platform.test_platform import CLICKED, STAGES

pytestmark = pytest.mark.timeout(1800)

SMALL = {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}
ASK = """
import json, sys, urllib.request
server, model = sys.argv[1:]
with urllib.request.urlopen(server + "/openapi.json", timeout=30) as answer:
    content = json.load(answer)["paths"][f"/models/{model}/predict"]["post"]["requestBody"]["content"]
row = content["application/json"]["example"]
request = urllib.request.Request(
    f"{server}/models/{model}/predict", json.dumps(row).encode(), {"Content-Type": "application/json"}
)
with urllib.request.urlopen(request, timeout=30) as answer:
    print(answer.read().decode())
"""
"""Program that sends the server's own example row."""


@pytest.mark.usefixtures("tables")
def test_a_served_pod_answers_a_client_of_the_ingress_alone(team: TeamInPods, client: str) -> None:
    with team.webserver() as dagster:
        run_id = dagster.launch(
            LOCATION, [f"store_demand/{stage}" for stage in STAGES], {"dagster/partition": CLICKED}
        )
        assert dagster.wait_for_run(run_id).status == "SUCCESS", team.about()
    said = team.command("promote", "store_demand", "--reason", "for the shops")
    assert "in production" in said
    team.change({"serving": {"enabled": True, "models": ["store_demand"], "replicas": 1, "resources": SMALL}})

    pod = team.ready_pod("serving")
    address = f"{team.cluster.pod(pod)['status']['podIP']}:8080"
    server = f"http://serving-store-demand.{team.cluster.namespace}.svc.cluster.local:8080"
    ask = [f"--namespace={CLIENTS}", "exec", client, "--", "python", "-c", ASK, server, "store_demand"]
    answer = json.loads(team.cluster.cluster.kubectl(*ask))
    assert math.isfinite(answer["prediction"])
    assert (answer["role"], answer["model"]) == ("production", "store_demand")

    other = team.idle_pod("uninvited-of-serving", {}, f"node{team.cluster.cluster.layout.numbers[0]}")
    places = [address, "serving-store-demand:8080"]
    waited_for(lambda: not team.reached_from(other, places), "the served pod to be closed", 120)
    team.cluster.kubectl("delete", "pod", "--wait=false", other)
    team.change({"serving": {"enabled": False}})
