"""Command line `python -m deployment.testbed servers up|down|status|kill NAME|start NAME`, with `--state FOLDER`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from deployment.testbed.servers.server_group import NAMES, Servers
from deployment.testbed.servers.servers_record import HOST

DEFAULT = Path("build") / "servers"


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status: 1 if a server in `status` is not ready. Raise `ServerFailed` or
    `BuildFailed`.
    """
    parser = argparse.ArgumentParser(prog="python -m deployment.testbed servers", description=__doc__)
    parser.add_argument(
        "--state", type=Path, default=DEFAULT, help="folder of these servers (default %(default)s)"
    )
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("up", help="build, start, wait until all are ready; running servers stay as they are")
    actions.add_parser("down", help="end all, remove their data, check that nothing is left")
    actions.add_parser("status", help="show address, version and readiness of each server")
    for action, what in (("kill", "send SIGKILL to one server"), ("start", "start one server again")):
        actions.add_parser(action, help=what).add_argument("name", choices=NAMES)
    asked = parser.parse_args(arguments)
    servers = Servers(asked.state)
    if asked.action == "up":
        servers.up()
        print(f"Point a shell at them: source {asked.state}/servers.env")
    elif asked.action == "down":
        servers.down()
    elif asked.action == "kill":
        servers.kill(asked.name)
    elif asked.action == "start":
        servers.restart(asked.name)
    else:
        return _status(servers)
    return 0


def _status(servers: Servers) -> int:
    reasons = servers.why_not()
    record = servers.record
    for name, reason in reasons.items():
        process = record.processes.get(name)
        pid = "-" if process is None else process.pid
        where = f"{HOST}:{record.ports[name]}"
        print(f"{name:<11} {record.versions.get(name, '-'):<18} {where:<16} pid {pid:<8} {reason or 'ready'}")
    return 1 if any(reasons.values()) else 0
