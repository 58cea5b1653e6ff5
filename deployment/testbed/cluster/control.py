"""The control plane: etcd, API server, controller manager, scheduler and name service as processes of this machine.

Here: their command lines and settings, and their readiness checks. They listen on the bridge address, or on loopback if
only this machine connects.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deployment.testbed.cluster.certificates import Pki
from deployment.testbed.cluster.cluster_layout import API_PORT, DOMAIN, SERVICES, ClusterLayout

GRACE_SECONDS = 10
"""Seconds without a heartbeat until a node is NotReady. Kubernetes' default is 50, and tests would wait for that."""
NAME_SERVICE_READY_PORT = 8181
NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns")
"""The parts, in the order of their start."""
PACKING_SCHEDULER = "packing"
"""Name by which a pod asks for the node whose GPUs are used most, so that whole nodes stay free for large trainings."""


@dataclass(frozen=True)
class Programs:
    """Folders with the built programs."""

    kubernetes: Path
    coredns: Path


@dataclass(frozen=True)
class EtcdPorts:
    """Loopback ports, fixed for the life of the cluster."""

    client: int
    peer: int


def commands(
    layout: ClusterLayout, programs: Programs, pki: Pki, ports: EtcdPorts
) -> dict[str, list[str | Path]]:
    """Return the command line of every part, by name."""
    return {
        "etcd": etcd(layout, ports),
        "kube-apiserver": api_server(layout, programs, pki, ports),
        "kube-controller-manager": controller_manager(programs, pki),
        "kube-scheduler": scheduler(layout, programs, pki),
        "coredns": name_service(layout, programs),
    }


def etcd(layout: ClusterLayout, ports: EtcdPorts) -> list[str | Path]:
    """Return the command of etcd. It does not wait for the disk: its records need not survive a power cut."""
    client, peer = f"http://127.0.0.1:{ports.client}", f"http://127.0.0.1:{ports.peer}"
    return [
        "etcd",
        f"--data-dir={layout.state / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server(layout: ClusterLayout, programs: Programs, pki: Pki, ports: EtcdPorts) -> list[str | Path]:
    """Return the command of the API server, which listens on the bridge address only, for this machine and for pods."""
    return [
        programs.kubernetes / "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{ports.client}",
        f"--bind-address={layout.address}",
        f"--advertise-address={layout.address}",
        f"--secure-port={API_PORT}",
        f"--client-ca-file={pki.ca}",
        f"--tls-cert-file={pki.certificate('apiserver')}",
        f"--tls-private-key-file={pki.key('apiserver')}",
        f"--cert-dir={pki.folder}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki.folder / 'service-account.pub'}",
        f"--service-account-signing-key-file={pki.key('service-account')}",
        f"--kubelet-client-certificate={pki.certificate('admin')}",
        f"--kubelet-client-key={pki.key('admin')}",
        f"--kubelet-certificate-authority={pki.ca}",
        "--kubelet-preferred-address-types=InternalIP",
        "--authorization-mode=Node,RBAC",
        f"--service-cluster-ip-range={SERVICES}",
        "--allow-privileged=true",
        # Service addresses exist only inside nodes: webhooks are called at the addresses of their pods.
        "--enable-aggregator-routing=true",
        # Streamed lists need a newer etcd than Debian has: clients would wait for ever for their first list.
        # Policies that change pods are off by default in this version; tests let one mount tokens as a cloud does.
        "--feature-gates=WatchList=false,MutatingAdmissionPolicy=true",
        "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
    ]


def controller_manager(programs: Programs, pki: Pki) -> list[str | Path]:
    """Return the command of the controller manager. It checks heartbeats every second; a single replica elects no
    leader.
    """
    name = "kube-controller-manager"
    return [
        programs.kubernetes / name,
        f"--kubeconfig={pki.kubeconfig(name)}",
        f"--root-ca-file={pki.ca}",
        f"--service-account-private-key-file={pki.key('service-account')}",
        "--use-service-account-credentials=true",
        f"--cluster-signing-cert-file={pki.ca}",
        f"--cluster-signing-key-file={pki.key('ca')}",
        f"--cert-dir={pki.folder}",
        "--leader-elect=false",
        "--secure-port=0",
        f"--node-monitor-grace-period={GRACE_SECONDS}s",
        "--node-monitor-period=1s",
        "--kube-api-qps=300",
        "--kube-api-burst=600",
    ]


def scheduler(layout: ClusterLayout, programs: Programs, pki: Pki) -> list[str | Path]:
    """Return the command of the scheduler. Its settings are in a file, because the rates are no longer flags."""
    name = "kube-scheduler"
    by_gpus = {"type": "MostAllocated", "resources": [{"name": "nvidia.com/gpu", "weight": 1}]}
    packing = {"name": "NodeResourcesFit", "args": {"scoringStrategy": by_gpus}}
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(pki.kubeconfig(name)), "qps": 300, "burst": 600},
        "profiles": [
            {"schedulerName": "default-scheduler"},
            {"schedulerName": PACKING_SCHEDULER, "pluginConfig": [packing]},
        ],
    }
    file = layout.state / "scheduler.json"
    write_once(file, json.dumps(config, indent=1))
    return [programs.kubernetes / name, f"--config={file}", f"--cert-dir={pki.folder}", "--secure-port=0"]


def name_service(layout: ClusterLayout, programs: Programs) -> list[str | Path]:
    """Return the command of the name service, for services and for pods behind headless services. Its answers are valid
    for a second, because pods come and go.
    """
    corefile = f"""\
.:53 {{
  bind {layout.address}
  kubernetes {DOMAIN} in-addr.arpa {{
    kubeconfig {layout.kubeconfig} {layout.context}
    pods insecure
    ttl 1
  }}
  ready {layout.address}:{NAME_SERVICE_READY_PORT}
  errors
}}
"""
    write_once(layout.state / "Corefile", corefile)
    return [programs.coredns / "coredns", "-conf", layout.state / "Corefile"]


def write_once(file: Path, text: str) -> None:
    """Write a file unless its content is already right: some programs end when their settings are touched."""
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


def kubectl(layout: ClusterLayout, programs: Programs, words: Sequence[str | Path]) -> list[str | Path]:
    """Return a command of kubectl in the cluster's own version, as its administrator."""
    return [programs.kubernetes / "kubectl", f"--kubeconfig={layout.kubeconfig}", *words]
