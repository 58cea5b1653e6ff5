"""Attempts of a worker that steals, run by the Python of its own container: prints the names of what it got.

Plain functions without this project, because the text of this file is the program. The first argument is JSON: `places`
(name → HOST:PORT to connect to), `kubelet` and `api` (HOST:PORT), and `namespace`.
"""

import ctypes
import json
import os
import re
import socket
import ssl
import stat
import sys
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

SECONDS = 10
OWN = re.compile(r"AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN)")
"""Credentials that a worker needs."""
CLONE_NEWUSER = 0x10000000


def reaches(place: str) -> bool:
    """A refused connection went through, too: a policy lets no packet pass."""
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), SECONDS).close()
    except ConnectionRefusedError:
        return True
    return True


def answers(address: str) -> bool:
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(address, timeout=SECONDS, context=trusting) as answer:
        return answer.status == 200


def has_token() -> bool:
    return Path("/var/run/secrets/kubernetes.io/serviceaccount/token").read_text() != ""


def has_credentials() -> bool:
    secret = re.compile("KEY|SECRET|TOKEN|PASSWORD|_URL$|POSTGRES")
    return any(secret.search(name) and not OWN.fullmatch(name) for name in os.environ if "S3" not in name)


def sees_other_processes() -> bool:
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended
            if "kubelet" in one.read_text().split("\0")[0]:
                return True
    return False


def is_root() -> bool:
    os.setuid(0)
    return os.getuid() == 0


def may_gain_rights() -> bool:
    status = Path("/proc/self/status").read_text()
    return "NoNewPrivs:\t1" not in status or not re.search(r"CapEff:\t0+$", status, re.MULTILINE)


def writes_the_image() -> bool:
    written = Path(sys.prefix, "stolen")
    written.write_text("")
    written.unlink()
    return True


def mounts() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.mount(b"none", b"/mnt", b"tmpfs", 0, None) == 0
    if done:
        libc.umount(b"/mnt")
    return done


def makes_a_device() -> bool:
    os.mknod("/tmp/device", stat.S_IFBLK | 0o600, os.makedev(7, 0))
    Path("/tmp/device").unlink()
    return True


def finds_the_nodes_sockets() -> bool:
    return any(Path(one).exists() for one in ("/run/containerd/containerd.sock", "/var/run/docker.sock"))


def sends_raw_packets() -> bool:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
    return True


def changes_the_kernel() -> bool:
    setting = Path("/proc/sys/kernel/core_pattern")
    setting.write_text(setting.read_text())
    return True


def makes_a_user_namespace() -> bool:
    return ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER) == 0


def attempts(told: dict[str, Any]) -> dict[str, Callable[[], bool]]:
    """Return name → attempt. Each returns True, or fails, or returns False."""
    secrets = f"https://{told['api']}/api/v1/namespaces/{told['namespace']}/secrets"
    return {
        **{f"reaches {name}": lambda place=place: reaches(place) for name, place in told["places"].items()},
        "lists the Secrets": lambda: answers(secrets),
        "lists the pods of its node": lambda: answers(f"https://{told['kubelet']}/pods"),
        "has a token of an account": has_token,
        "has credentials beside those of S3": has_credentials,
        "sees other processes": sees_other_processes,
        "becomes root": is_root,
        "may gain rights": may_gain_rights,
        "writes the image": writes_the_image,
        "mounts": mounts,
        "makes a device": makes_a_device,
        "finds the node's sockets": finds_the_nodes_sockets,
        "sends raw packets": sends_raw_packets,
        "changes the kernel": changes_the_kernel,
        "makes a user namespace": makes_a_user_namespace,
    }


def got(attempt: Callable[[], bool]) -> bool:
    try:
        return attempt()
    except (OSError, ValueError):
        return False


if __name__ == "__main__":
    tried = attempts(json.loads(sys.argv[1]))
    # Packets that are dropped take their time. The rest is for one thread: several cannot change their user.
    with ThreadPoolExecutor() as pool:
        slow = {
            name: pool.submit(got, attempt) for name, attempt in tried.items() if name.startswith("reaches")
        }
    results = {name: one.result() for name, one in slow.items()}
    results |= {name: got(attempt) for name, attempt in tried.items() if name not in slow}
    print(json.dumps([name for name, is_got in results.items() if is_got]))
