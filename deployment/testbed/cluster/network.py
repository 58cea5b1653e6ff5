"""Bridge, virtual cables and routes between this machine and the nodes.

Here: links and addresses. The machine gets one bridge and one cable per node, and forwards nothing. Nodes reach each
other over the bridge, the machine at its bridge address, and nothing else. A cable ends with the network namespace at
its other end.
"""

import json
from typing import Any

from deployment.testbed.cluster.cluster_layout import ClusterLayout, NodeLayout
from deployment.testbed.cluster.commands import CommandFailed, run, succeeds


def links() -> dict[str, str]:
    """Return the name of every link of this machine → its alias, empty without one."""
    return {link["ifname"]: link.get("ifalias", "") for link in _ip("link", "show")}


def overlapping_routes(layout: ClusterLayout) -> list[str]:
    """Return routes of this machine into the cluster's network that do not use the cluster's own bridge."""
    prefix = f"{layout.network}."
    return [
        f"{route['dst']} {route.get('dev', route.get('type', ''))}"
        for route in _ip("route", "show", "table", "all")
        if str(route["dst"]).startswith(prefix) and route.get("dev") != layout.bridge
    ]


def make_bridge(layout: ClusterLayout) -> None:
    """Make the bridge with the machine's address, and the name of the state folder as its alias. Keep an existing
    bridge.
    """
    if layout.bridge not in links():
        # Its own hardware address: otherwise a bridge takes that of a port, and changes it when that node dies.
        mac = ":".join(["02", "00", *(f"{int(part):02x}" for part in layout.address.split("."))])
        run(["ip", "link", "add", "name", layout.bridge, "address", mac, "type", "bridge"])
    run(["ip", "link", "set", layout.bridge, "alias", str(layout.state)])
    run(["ip", "address", "replace", f"{layout.address}/24", "dev", layout.bridge])
    run(["ip", "link", "set", layout.bridge, "up"])


def remove_bridge(layout: ClusterLayout) -> None:
    """Remove the bridge, and cables of nodes that died before they got their end."""
    for name in links():
        if name == layout.bridge or name.startswith(f"{layout.name}-node"):
            _delete(name)


def unplug(node: NodeLayout) -> None:
    """Remove the node's cable, unless the kernel has removed it with the node's network."""
    _delete(node.cable)


def connect(node: NodeLayout, pid: int) -> None:
    """Plug the node whose namespaces process `pid` holds into the bridge, with its address and its routes."""
    layout = node.cluster
    unplug(node)
    run(["ip", "link", "add", "name", node.cable, "type", "veth", "peer", "name", "eth0", "netns", str(pid)])
    run(["ip", "link", "set", node.cable, "master", layout.bridge, "up"])
    inside = [
        "link set lo up",
        f"address add {node.address}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {layout.address}",
        *(
            f"route add {other.pods} via {other.address}"
            for other in map(layout.node, layout.numbers)
            if other != node
        ),
    ]
    run(["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-batch", "-"], stdin="\n".join(inside))
    run(["nsenter", f"--net=/proc/{pid}/ns/net", "sysctl", "-qw", "net.ipv4.ip_forward=1"])
    run(["ip", "route", "replace", node.pods, "via", node.address, "dev", layout.bridge])


def cut(node: NodeLayout) -> None:
    """Pull the node's cable: no packet goes in or out, while every process of the node runs on. Do nothing without a
    cable.
    """
    if node.cable in links():
        run(["ip", "link", "set", node.cable, "down"])


def mend(node: NodeLayout) -> None:
    """Plug the cable in again. Raise `CommandFailed` if the node is not running."""
    if node.cable not in links():
        raise CommandFailed(f"{node.name} has no cable: it is not running. Start it with start-node.")
    run(["ip", "link", "set", node.cable, "up"])


def _delete(name: str) -> None:
    # It may vanish meanwhile, with the network namespace at its other end.
    if name in links() and not succeeds(["ip", "link", "delete", name]) and name in links():
        raise CommandFailed(f"The link {name} cannot be removed.")


def _ip(*words: str) -> list[dict[str, Any]]:
    return json.loads(run(["ip", "-json", *words]) or "[]")
