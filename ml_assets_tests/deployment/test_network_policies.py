"""Network policies of the chart in `deployment/helm` as the rules that a test cluster loads into its nodes."""

import re
from typing import Any

import pytest

from deployment.testbed.cluster.network_policies import PolicyNotSupported, ruleset
from ml_assets_tests.deployment.chart_objects import chart_objects

TEAM, NODES = "team-a", ["10.88.0.11", "10.88.0.12"]
PODS = {
    "10.88.1.2": {"app": "webserver"},
    "10.88.1.3": {"app": "daemon"},
    "10.88.2.2": {"app": "code-location"},
    "10.88.1.4": {"app.kubernetes.io/managed-by": "ml-assets"},
    "10.88.2.3": {"app.kubernetes.io/managed-by": "ml-assets"},
    "10.88.2.4": {"dagster/run-id": "1"},
}
NAMESPACES = [
    {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}} for name in (TEAM, "other")
]


def shipped() -> list[dict[str, Any]]:
    """Return the policies of a team with Ray and metrics."""
    policies = chart_objects("NetworkPolicy")
    for one in policies:
        one["metadata"]["namespace"] = TEAM
    return policies


def pod(address: str, labels: dict[str, str], namespace: str = TEAM, **status: str) -> dict[str, Any]:
    """Return a running pod as the API server lists it."""
    metadata = {"name": address, "namespace": namespace, "labels": labels}
    return {"metadata": metadata, "spec": {}, "status": {"podIP": address, "phase": "Running", **status}}


def chains(policies: list[dict[str, Any]], *more: dict[str, Any]) -> dict[str, list[str]]:
    """Return the rules of each chain for `PODS` and more pods."""
    script = ruleset(policies, [*(pod(*one) for one in PODS.items()), *more], NAMESPACES, NODES)
    found = re.findall(r"^  chain (\w+) \{\n(.*?)^  \}", script, re.MULTILINE | re.DOTALL)
    return {name: [line.strip() for line in body.splitlines()] for name, body in found}


def test_only_webserver_and_daemon_may_connect_to_the_code_location() -> None:
    found = chains(shipped())
    only = "ip saddr { 10.88.1.2, 10.88.1.3 } tcp dport 4000 return"
    assert found["ingress_10_88_2_2"] == [only, "drop"]
    towards = {name for name, rules in found.items() if any("10.88.2.2 }" in rule for rule in rules)}
    assert towards == {"egress_10_88_1_2", "egress_10_88_1_3"}


def test_workers_connect_to_workers_only() -> None:
    among = "10.88.1.4, 10.88.2.3"
    found = chains(shipped())
    assert found["ingress_10_88_1_4"] == [f"ip saddr {{ {among} }} return", "drop"]
    assert f"ip daddr {{ {among} }} return" in found["egress_10_88_1_4"]
    assert [name for name, rules in found.items() if any(among in rule for rule in rules)] == [
        "egress_10_88_1_4",
        "egress_10_88_2_3",
        "ingress_10_88_1_4",
        "ingress_10_88_2_3",
    ]


def test_runs_reach_the_head_of_ray_and_workers_of_trainings_do_not() -> None:
    """A client of Ray runs code with the team's credentials."""
    head = pod("10.88.1.7", {"app": "ray-head", "ml-assets/ray": "member"})
    found = chains(shipped(), head)
    assert [rule for rule in found["ingress_10_88_1_7"] if "10001" in rule and "10.88.2.4" in rule]
    assert not any("10.88.1.4" in rule for rule in found["ingress_10_88_1_7"])
    towards = {name for name, rules in found.items() if any("10.88.1.7" in rule for rule in rules)}
    assert "egress_10_88_2_4" in towards
    assert not {"egress_10_88_1_4", "egress_10_88_2_3"} & towards


def test_each_connection_is_decided_for_both_ends_but_those_of_nodes() -> None:
    jumps = chains(shipped())["forward"]
    for address in PODS:
        name = address.replace(".", "_")
        assert f"ip saddr {address} jump egress_{name}" in jumps
        assert f"ip saddr != {{ {', '.join(NODES)} }} ip daddr {address} jump ingress_{name}" in jumps


def test_pods_of_other_namespaces_and_ended_pods_have_no_rules() -> None:
    others = (
        pod("10.88.1.9", {"app": "daemon"}, "other"),
        pod("10.88.1.8", {"app": "daemon"}, phase="Failed"),
    )
    found = chains(shipped(), *others)
    assert not any("10_88_1_9" in name or "10_88_1_8" in name for name in found)
    assert not any("10.88.1.9" in rule or "10.88.1.8" in rule for rules in found.values() for rule in rules)


def test_a_named_port_is_refused_with_the_name_of_its_policy() -> None:
    policies = shipped()
    (own,) = [one for one in policies if one["metadata"]["name"] == "code-location"]
    own["spec"]["ingress"][0]["ports"][0]["port"] = "grpc"
    with pytest.raises(PolicyNotSupported, match=rf"{TEAM}/code-location .*'grpc'"):
        chains(policies)
