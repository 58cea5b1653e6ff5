"""One node: its own network namespace and mount namespace, and in them containerd, kubelet and kube-proxy.

Here: their settings and the order of their start. One sleeping process, the node's "machine", holds the namespaces.
Inside, /run is new, and /var/lib/{kubelet,containerd,cni} and /var/log are folders of the node, so all three programs
use their usual paths. No other process sees their mounts, which end with them.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from deployment.testbed import processes
from deployment.testbed.cluster import cgroups, network
from deployment.testbed.cluster.certificates import Pki
from deployment.testbed.cluster.cluster_layout import DOMAIN, NodeLayout
from deployment.testbed.cluster.commands import run, succeeds
from deployment.testbed.cluster.control import GRACE_SECONDS, Programs, write_once
from deployment.testbed.processes import Process

OWN_FOLDERS = ("/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/log")
"""Folders to which the three programs write. Some of the paths cannot be configured."""
MARK = ".mount-point-of-ml-assets-nodes"
CNI_PROGRAMS = Path("/usr/lib/cni")
SOCKET = "/run/containerd/containerd.sock"
HEARTBEAT_SECONDS = 2
LOG_SIZE = "1Mi"
"""Size at which a pod's log is rotated, so that tests meet a rotation. The default is 10Mi."""


def make_mount_points() -> None:
    """Make those of `OWN_FOLDERS` that this machine lacks, as mount points. They are marked, so that the last cluster
    that ends removes them.
    """
    for folder in map(Path, OWN_FOLDERS):
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / MARK).touch()


def remove_mount_points() -> None:
    """Remove the folders of `make_mount_points`, unless they contain foreign files or mounts."""
    mounted = set[str]()
    for process in Path("/proc").glob("[0-9]*/mountinfo"):
        with suppress(OSError):  # it ended meanwhile
            mounted |= {line.split()[4] for line in process.read_text().splitlines()}
    for folder in map(Path, OWN_FOLDERS):
        ours = (folder / MARK).exists() and str(folder) not in mounted
        if ours and [entry.name for entry in folder.iterdir()] == [MARK]:
            (folder / MARK).unlink()
            folder.rmdir()


def start_machine(node: NodeLayout) -> Process:
    """Start the process that holds the node's namespaces; mount the folders and plug in the network."""
    cgroups.make(node.cgroup)
    cgroups.make(f"{node.cgroup}/system")
    # `slave`: later mounts of this machine can still be mounted into pods, but no mount comes back.
    hold = ["unshare", "--net", "--mount", "--propagation", "slave", "sleep", "infinity"]
    machine = start(node, "machine", hold)
    processes.wait_ready(machine, lambda: _why_no_namespace(machine), seconds=10)
    binds = []
    for own in OWN_FOLDERS:
        ours = _own_folder(node, own)
        ours.mkdir(parents=True, exist_ok=True)
        binds.append(f"mount --bind {ours} {own}")
    script = "\n".join(["set -e", *binds, "mount -t tmpfs tmpfs /run", "mkdir -p /run/lock"])
    run(inside(node, machine, ["sh", "-c", script]))
    network.connect(node, machine.pid)
    return machine


def start_containerd(node: NodeLayout, machine: Process, pause_image: str) -> Process:
    """Start containerd; return when it answers."""
    config = node.folder / "containerd.toml"
    plugins = node.folder / "cni"
    plugins.mkdir(exist_ok=True)
    write_once(plugins / "10-bridge.conflist", json.dumps(_cni(node), indent=1))
    write_once(config, _containerd_settings(node, pause_image))
    command: list[str | Path] = [*_joining(machine), "containerd", "--config", config, "--log-level", "warn"]
    containerd = start(node, "containerd", command)
    processes.wait_ready(
        containerd,
        lambda: "" if succeeds(ctr(node, machine, "version")) else f"no answer at {SOCKET} of {node.name}",
        seconds=30,
    )
    return containerd


def start_kubelet(node: NodeLayout, machine: Process, programs: Programs, pki: Pki) -> Process:
    """Start the kubelet. containerd must answer already, or the kubelet ends at once."""
    config = node.folder / "kubelet.json"
    write_once(config, json.dumps(_kubelet_settings(node, pki), indent=1))
    command = [
        *_joining(machine),
        programs.kubernetes / "kubelet",
        f"--kubeconfig={pki.kubeconfig(node.name)}",
        f"--config={config}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--cert-dir={pki.folder}",
        "--node-labels=ml-assets.local/real=true",
    ]
    return start(node, "kubelet", command)


def start_proxy(node: NodeLayout, machine: Process, programs: Programs, pki: Pki) -> Process:
    """Start kube-proxy: service addresses by nftables of the node's own network namespace."""
    settings = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(pki.kubeconfig("kube-proxy"))},
        "mode": "nftables",
        "hostnameOverride": node.name,
        "oomScoreAdj": 0,
        # Two pods on one bridge talk past the node: answers are translated only with this setting.
        "nftables": {"masqueradeAll": True},
        # The kernel's table sizes belong to the whole machine.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
    config = node.folder / "kube-proxy.json"
    write_once(config, json.dumps(settings, indent=1))
    command = [*_joining(machine), programs.kubernetes / "kube-proxy", f"--config={config}"]
    return start(node, "kube-proxy", command)


def start(node: NodeLayout, program: str, command: list[str | Path] | list[str]) -> Process:
    """Start a program of the node inside its cgroup tree, recorded as `<program>-<node>`."""
    name = node.process(program)
    return processes.start(
        name, cgroups.enter_command(f"{node.cgroup}/system", command), log=node.cluster.log(name)
    )


def inside(node: NodeLayout, machine: Process, command: Sequence[str | Path]) -> list[str | Path]:
    """Return a command in the node's namespaces and cgroups. It ends with the node, even if its caller is killed."""
    return cgroups.enter_command(f"{node.cgroup}/system", [*_joining(machine), *command])


def ctr(node: NodeLayout, machine: Process, *words: str | Path) -> list[str | Path]:
    """Return a command for the node's containerd, in the name space of Kubernetes."""
    return inside(node, machine, ["ctr", "--address", SOCKET, "--namespace", "k8s.io", *words])


def import_image(node: NodeLayout, machine: Process, image: str, archive: Path) -> None:
    """Import `archive` unless the node has `image` already. Raise `CommandFailed`."""
    if image not in run(ctr(node, machine, "images", "list", "--quiet")).split():
        run(ctr(node, machine, "images", "import", "--snapshotter", "overlayfs", archive), seconds=600)


def folder_of(node: NodeLayout, path: Path) -> Path:
    """Return this machine's path for a `path` of the node's programs below one of their own folders."""
    own = next(own for own in OWN_FOLDERS if path.is_relative_to(own))
    return _own_folder(node, own) / path.relative_to(own)


def _own_folder(node: NodeLayout, own: str) -> Path:
    return node.folder / own.strip("/").replace("/", "-")


def _joining(machine: Process) -> list[str | Path]:
    return ["nsenter", f"--net=/proc/{machine.pid}/ns/net", f"--mount=/proc/{machine.pid}/ns/mnt", "--"]


def _why_no_namespace(machine: Process) -> str:
    """Wait until `unshare` has become `sleep`: then the namespaces exist."""
    comm = Path(f"/proc/{machine.pid}/comm").read_text().strip() if processes.alive(machine) else "gone"
    return "" if comm == "sleep" else f"its process is still {comm!r}"


def _containerd_settings(node: NodeLayout, pause_image: str) -> str:
    return f"""\
version = 2
[plugins."io.containerd.internal.v1.opt"]
  path = "{node.folder / "opt"}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause_image}"
  # Lowering a process's score needs a capability that containers often lack.
  restrict_oom_score_adj = true
  max_container_log_line_size = 262144
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PROGRAMS}"
    conf_dir = "{node.folder / "cni"}"
"""


def _cni(node: NodeLayout) -> dict[str, object]:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            # Below /run: addresses that a dead node gave out are forgotten when it comes back.
            "dataDir": "/run/cni",
            "ranges": [[{"subnet": node.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}


def _kubelet_settings(node: NodeLayout, pki: Pki) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki.ca)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki.certificate(f"serving-{node.name}")),
        "tlsPrivateKeyFile": str(pki.key(f"serving-{node.name}")),
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "enforceNodeAllocatable": [],
        "makeIPTablesUtilChains": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "clusterDNS": [node.cluster.address],
        "clusterDomain": DOMAIN,
        # Pods know only the cluster's names; /dev/null keeps out the search domains of this machine.
        "resolvConf": "/dev/null",
        "volumePluginDir": str(node.folder / "volume-plugins"),
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "nodeLeaseDurationSeconds": GRACE_SECONDS,
        "nodeStatusUpdateFrequency": f"{HEARTBEAT_SECONDS}s",
        "containerLogMaxSize": LOG_SIZE,
        "containerLogMonitorInterval": "3s",
        "volumeStatsAggPeriod": "10s",  # a pod over its limit of disk would be found after up to a minute
    }
