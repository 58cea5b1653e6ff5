"""NetworkPolicies of a cluster as rules of nftables: one chain for each pod and direction that a policy selects.

Here: the translation, without any effect. `policy_agent` loads the rules into the nodes. Both directions of a
connection are decided where its first packet is forwarded: kube-proxy has put the pod behind a Service there already,
and has not yet hidden the sender behind its node.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from deployment.testbed.processes import ServerFailed

TABLE = "ml_assets_policies"
_SIDES = (("Egress", "egress", "to", "daddr"), ("Ingress", "ingress", "from", "saddr"))
"""Type of a policy → its list of rules, its list of peers, and which address a peer has."""

Object = Mapping[str, Any]


class PolicyNotSupported(ServerFailed):
    """A NetworkPolicy uses a named port, which this translation does not know. The message names the policy."""


def ruleset(
    policies: Sequence[Object], pods: Sequence[Object], namespaces: Sequence[Object], nodes: Sequence[str]
) -> str:
    """Return a script for `nft --file` that replaces all rules of `TABLE`. `nodes`: addresses of the nodes, whose own
    connections, such as probes, are always allowed. Raise `PolicyNotSupported`.
    """
    labels = {one["metadata"]["name"]: one["metadata"].get("labels", {}) for one in namespaces}
    running = [one for one in pods if _has_own_address(one)]
    chains: list[str] = []
    jumps: list[str] = []
    for kind, rules, peers, side in _SIDES:
        own = {"saddr": "daddr", "daddr": "saddr"}[side]
        not_a_node = f"ip saddr != {_set(nodes)} " if kind == "Ingress" else ""
        for pod in running:
            chosen = [one for one in policies if kind in one["spec"]["policyTypes"] and _selects(one, pod)]
            if not chosen:
                continue
            address = pod["status"]["podIP"]
            name = f"{rules}_{address.replace('.', '_')}"
            allowed = [
                f"{match} return"
                for policy in chosen
                for rule in policy["spec"].get(rules) or ()
                for match in _matches(policy, rule, peers, side, running, labels)
            ]
            chains.append(_chain(name, [*dict.fromkeys(allowed), "drop"]))
            jumps.append(f"{not_a_node}ip {own} {address} jump {name}")
    hook = "type filter hook forward priority filter; policy accept;"
    forward = _chain("forward", [hook, "ct state established,related accept", *jumps])
    body = "\n".join([*chains, forward])
    return f"table inet {TABLE} {{}}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n{body}\n}}\n"


def _has_own_address(pod: Object) -> bool:
    status = pod["status"]
    is_over = status.get("phase") in ("Succeeded", "Failed")
    return bool(status.get("podIP")) and not is_over and not pod["spec"].get("hostNetwork")


def _selects(policy: Object, pod: Object) -> bool:
    in_its_namespace = policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
    return in_its_namespace and _fits(policy["spec"].get("podSelector"), pod["metadata"].get("labels", {}))


def _matches(
    policy: Object,
    rule: Object,
    peers: str,
    side: str,
    pods: Sequence[Object],
    namespaces: Mapping[str, Mapping[str, str]],
) -> list[str]:
    """Return the conditions under which a rule allows a connection: each kind of peer with each port."""
    ports = [_port(policy, port) for port in rule.get("ports") or ()] or [""]
    if not rule.get(peers):
        return [port or "meta nfproto ipv4" for port in ports]
    found: list[str] = []
    for peer in rule[peers]:
        if block := peer.get("ipBlock"):
            found.append(_block(block, side))
            continue
        space = policy["metadata"]["namespace"]
        addresses = [
            pod["status"]["podIP"]
            for pod in pods
            if _is_peer(peer, space, pod["metadata"], namespaces.get(pod["metadata"]["namespace"], {}))
        ]
        if addresses:
            found.append(f"ip {side} {_set(sorted(addresses))}")
    return [f"{one} {port}".strip() for one in found for port in ports]


def _is_peer(peer: Object, space: str, pod: Object, labels: Mapping[str, str]) -> bool:
    in_space = (
        _fits(peer["namespaceSelector"], labels) if "namespaceSelector" in peer else pod["namespace"] == space
    )
    return in_space and _fits(peer.get("podSelector"), pod.get("labels", {}))


def _fits(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Return True if the labels meet a label selector of Kubernetes; None and an empty one fit all."""
    wanted: Mapping[str, str] = (selector or {}).get("matchLabels") or {}
    expressions: Sequence[Object] = (selector or {}).get("matchExpressions") or ()
    return wanted.items() <= labels.items() and all(_holds(one, labels) for one in expressions)


def _holds(expression: Object, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    return {
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
        "In": labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
    }[expression["operator"]]


def _port(policy: Object, port: Object) -> str:
    protocol, number = port.get("protocol", "TCP").lower(), port.get("port")
    if number is None:
        return f"meta l4proto {protocol}"
    if not isinstance(number, int):
        name = f"{policy['metadata']['namespace']}/{policy['metadata']['name']}"
        raise PolicyNotSupported(f"NetworkPolicy {name} has the named port {number!r}: write its number.")
    last = port.get("endPort", number)
    return f"{protocol} dport {number}" if last == number else f"{protocol} dport {number}-{last}"


def _block(block: Object, side: str) -> str:
    without = f" ip {side} != {_set(block['except'])}" if block.get("except") else ""
    # nftables has no prefix of no bits.
    return ("meta nfproto ipv4" if block["cidr"] == "0.0.0.0/0" else f"ip {side} {block['cidr']}") + without


def _set(elements: Sequence[str]) -> str:
    return f"{{ {', '.join(elements)} }}"


def _chain(name: str, lines: Sequence[str]) -> str:
    return "\n".join([f"  chain {name} {{", *(f"    {line}" for line in lines), "  }"])
