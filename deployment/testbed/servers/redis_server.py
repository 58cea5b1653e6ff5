"""Redis of a Debian package, on loopback, with an append-only file in our folder.

The package `redis-tools` has the program under the name `redis-check-rdb`; only the name decides what it does. The
package `redis-server` would add a link to it and a system service, which nothing here uses.
"""

import shutil
import signal
import socket
from contextlib import closing

from deployment.testbed.processes import Process, ServerFailed, start
from deployment.testbed.servers.servers_record import HOST, REDIS, ServersRecord, server_environment

_SECONDS = 2.0
_PROGRAM = "redis-check-rdb"


class RedisServer:
    """The Redis server, for online features."""

    name = REDIS
    ask = signal.SIGTERM
    seconds = 30.0

    def prepare(self, record: ServersRecord) -> None:
        """Write its settings. The password is in a file, because every user can read arguments."""
        folder = record.path / REDIS
        folder.mkdir(exist_ok=True)
        settings = folder / "redis.conf"
        settings.touch(mode=0o600)
        settings.write_text(
            f'bind {HOST}\nport {record.ports[REDIS]}\nrequirepass {record.redis_password}\ndir "{folder}"\n'
            'save ""\nappendonly yes\n'
        )
        found = shutil.which(_PROGRAM)
        if found is None:
            raise ServerFailed(
                f"{_PROGRAM} is not installed: "
                "deployment/install-system-packages.sh deployment/system-packages-servers.txt"
            )
        program = folder / "redis-server"
        program.unlink(missing_ok=True)
        program.symlink_to(found)

    def start(self, record: ServersRecord) -> Process:
        """Start it in the foreground."""
        folder = record.path / REDIS
        return start(
            REDIS,
            [folder / "redis-server", folder / "redis.conf"],
            log=record.log(REDIS),
            env=server_environment(record),
            cwd=folder,
        )

    def why_not(self, record: ServersRecord) -> str:
        """Return the reason why it does not answer PING; empty once it does."""
        try:
            answer = _call(record, "PING")
        except OSError as error:
            return f"{HOST}:{record.ports[REDIS]}: {error}"
        return "" if "+PONG" in answer else f"{HOST}:{record.ports[REDIS]}: {answer.strip()}"

    def finish(self, record: ServersRecord) -> None:
        """Do nothing: no set-up is needed."""

    def version(self, record: ServersRecord) -> str:
        """Return the version that the server reports."""
        for line in _call(record, "INFO server").splitlines():
            key, _, value = line.partition(":")
            if key == "redis_version":
                return f"Redis {value}"
        raise ServerFailed("Redis reported no version.")


def _call(record: ServersRecord, command: str) -> str:
    """Return the answers to AUTH, `command` and QUIT, in the text form of Redis's protocol."""
    address = (HOST, record.ports[REDIS])
    with closing(socket.create_connection(address, timeout=_SECONDS)) as connection:
        connection.sendall(f"AUTH {record.redis_password}\r\n{command}\r\nQUIT\r\n".encode())
        said = b""
        while more := connection.recv(65536):
            said += more
    return said.decode()
