"""Agent that loads the cluster's NetworkPolicies into all its nodes, again after each change of a pod or a policy.

`python -m deployment.testbed.cluster.policy_agent STATE` runs until it is ended. `sigs.k8s.io/kube-network-policies` is
what a cluster in production would run: it needs a kernel with CONFIG_NFT_QUEUE, which not every machine has. Not here:
the rules (`network_policies`).
"""

import sys
import time
from pathlib import Path

from deployment.testbed import processes
from deployment.testbed.cluster import api_server, cluster_record, node
from deployment.testbed.cluster.commands import CommandFailed, run
from deployment.testbed.cluster.network_policies import ruleset

SECONDS = 0.3
"""Pause between two looks at the cluster. A new pod is open until the next look after it got its address."""
_PATHS = ("/apis/networking.k8s.io/v1/networkpolicies", "/api/v1/pods", "/api/v1/namespaces")


def main(state: Path) -> None:
    """Keep the rules of all running nodes up to date."""
    loaded: dict[int, str] = {}
    while True:
        try:
            loaded = load_rules(state, loaded)
        except (api_server.ApiSilent, CommandFailed) as error:  # either is killed by a test, and comes back
            sys.stderr.write(f"{error}\n")
            sys.stderr.flush()
        time.sleep(SECONDS)


def load_rules(state: Path, loaded: dict[int, str]) -> dict[int, str]:
    """Load the rules into each running node that has others. `loaded`, and the result: process that holds a node →
    its rules. Raise `ApiSilent`, `CommandFailed` or `PolicyNotSupported`.
    """
    held = cluster_record.load(state)
    layout = held.layout
    nodes = [layout.node(number) for number in layout.numbers]
    policies, pods, namespaces = (api_server.get(layout, path)["items"] for path in _PATHS)
    rules = ruleset(policies, pods, namespaces, [one.address for one in nodes])
    now: dict[int, str] = {}
    for one in nodes:
        machine = held.processes.get(one.process("machine"))
        if machine is None or not processes.alive(machine):
            continue
        if loaded.get(machine.pid) != rules:
            # Two pods of one node connect over its bridge, whose packets nftables sees only with this setting.
            switch = "sysctl -qw net.bridge.bridge-nf-call-iptables=1 && exec nft --file -"
            run(node.inside(one, machine, ["sh", "-c", switch]), stdin=rules)
        now[machine.pid] = rules
    return now


if __name__ == "__main__":
    main(Path(sys.argv[1]))
