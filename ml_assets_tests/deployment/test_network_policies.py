"""Network policies of the chart in `deployment/helm` as the rules that a test cluster loads into its nodes."""

import re
from typing import Any

import pytest

from deployment.render import TEAM
from deployment.testbed.cluster.network_policies import PolicyNotSupported, ruleset
from ml_assets_tests.deployment.chart_objects import chart_objects
from ml_assets_tests.deployment.who_reaches_what import KINDS, OURS, TRAININGS, told_by_the_page
from resources.launcher.kubernetes.attempt_objects import policy_manifest

NODES = ["10.88.0.11", "10.88.0.12"]
PODS = {
    "10.88.1.2": {"app": "webserver"},
    "10.88.1.3": {"app": "daemon"},
    "10.88.2.2": {"app": "code-location"},
    "10.88.1.4": {"app.kubernetes.io/managed-by": "ml-assets"},
    "10.88.2.3": {"app.kubernetes.io/managed-by": "ml-assets"},
    "10.88.2.4": {"dagster/run-id": "1"},
}
NAMESPACES = [
    {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name, **labels}}}
    for name, labels in (
        (TEAM, {}),
        ("other", {}),
        ("ingress", {"ml-assets/ingress": "true"}),
        ("monitoring", {}),
    )
]


def shipped() -> list[dict[str, Any]]:
    """Return the policies of a team with Ray and metrics, and those that the launcher makes for its trainings."""
    owner = {"metadata": {"name": "train-1", "uid": "1"}}
    policies = chart_objects("NetworkPolicy")
    policies += [policy_manifest(job, "job", owner) for job in TRAININGS.values()]
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


def test_the_page_says_who_reaches_what() -> None:
    """Over all pairs of pods, of every kind."""
    pods = [
        pod(f"10.88.3.{number}", labels, space) for number, (labels, space) in enumerate(KINDS.values(), 2)
    ]
    pods += [
        pod(f"10.88.4.{number}", labels, space) for number, (labels, space) in enumerate(KINDS.values(), 2)
    ]
    addresses = {kind: (f"10.88.3.{number}", f"10.88.4.{number}") for number, kind in enumerate(KINDS, 2)}
    found = chains(shipped(), *pods)
    open_ports = {
        (sender, receiver): port
        for sender, (own, _) in addresses.items()
        for receiver, (_, other) in addresses.items()
        if {sender, receiver} & {*OURS}
        if (port := connects(found, own, other))
    }
    assert open_ports == told_by_the_page()


def connects(found: dict[str, list[str]], sender: str, receiver: str) -> str:
    """Return the port at which one pod may connect to another, `all`, or nothing."""
    leaves = _ports(found.get(f"egress_{sender.replace('.', '_')}"), f"daddr {{{receiver}}}")
    enters = _ports(found.get(f"ingress_{receiver.replace('.', '_')}"), f"saddr {{{sender}}}")
    both = {one for one in leaves | enters if {one, "all"} & leaves and {one, "all"} & enters}
    return "all" if "all" in both else ", ".join(sorted(both))


def _ports(rules: list[str] | None, peer: str) -> set[str]:
    """Return the ports of the rules for an address in a set; a pod without a chain of its own is open."""
    if rules is None:
        return {"all"}
    side, _, address = peer.strip("}").partition(" {")
    own = [one for one in rules if re.search(rf"{side} {{[^}}]*\b{re.escape(address)}\b[^}}]*}}", one)]
    return {match[1] if (match := re.search(r"dport (\S+)", one)) else "all" for one in own}


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
