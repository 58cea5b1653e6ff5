"""PostgreSQL of the Debian package, with its own database cluster; the package's cluster is never touched.

It refuses to run as root. Under root it runs as the package's user `postgres`, and its folder is elsewhere if that user
cannot reach ours.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from deployment.testbed.processes import Process, ServerFailed, start
from deployment.testbed.servers.servers_record import (
    DATABASE_USER,
    DATABASES,
    HOST,
    POSTGRESQL,
    ServersRecord,
    server_environment,
)

USER = "postgres"
SECONDS = 60.0


class PostgreSQLServer:
    """The PostgreSQL server, with databases for lakeFS, MLflow, the ledger and Dagster."""

    name = POSTGRESQL
    ask = signal.SIGINT
    """Signal of its fast shutdown, which ends sessions. SIGTERM would wait for them."""
    seconds = 120.0
    """Seconds until it is ready. After a kill it recovers first: 30 s were too few beside a build of Kubernetes."""

    def prepare(self, record: ServersRecord) -> None:
        """Make the database cluster, once and completely. Remove files that a killed server left in it."""
        data = data_folder(record)
        if data.exists():
            forget_killed(record)
            return
        making = data.with_name("making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(mode=0o700)
        password = data.with_name("password")
        password.touch(mode=0o600)
        password.write_text(record.database_password)
        if (owner := _owner()) is not None:
            shutil.chown(making, owner, owner)
            shutil.chown(password, owner, owner)
        made = [
            "--pgdata",
            making,
            "--username",
            DATABASE_USER,
            "--pwfile",
            password,
            "--auth",
            "scram-sha-256",
        ]
        text = ["--encoding", "UTF8", "--locale", "C.UTF-8"]
        _run([_program("initdb"), *made, *text], cwd=making, user=owner)
        password.unlink()
        making.rename(data)

    def start(self, record: ServersRecord) -> Process:
        """Start it: TCP on loopback only. Its shared memory is in files of its folder, so that a kill leaves none."""
        data = data_folder(record)
        settings = {
            "port": str(record.ports[POSTGRESQL]),
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "dynamic_shared_memory_type": "mmap",
            "shared_buffers": "64MB",
            "max_connections": "200",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return start(
            POSTGRESQL,
            [_program("postgres"), "-D", data, *options],
            log=record.log(POSTGRESQL),
            env=server_environment(record),
            cwd=data,
            user=_owner(),
        )

    def why_not(self, record: ServersRecord) -> str:
        """Return the reason why it does not answer a query; empty once it does."""
        try:
            query(record, "SELECT 1")
        except ServerFailed as error:
            return str(error)
        return ""

    def finish(self, record: ServersRecord) -> None:
        """Create the missing databases."""
        for database in DATABASES:
            make_database(record, database)

    def version(self, record: ServersRecord) -> str:
        """Return the version that the server reports."""
        return f"PostgreSQL {query(record, 'SHOW server_version').split()[0]}"


def place(folder: Path) -> Path:
    """Return PostgreSQL's folder for servers in `folder`: inside it, or a new folder below the system's temporary
    folder if the user of the server cannot reach the first.
    """
    inside = folder / POSTGRESQL
    inside.mkdir(exist_ok=True)
    owner = _owner()
    if owner is None:
        return inside
    there = ["test", "-x", str(inside)]
    reached = subprocess.run(there, cwd="/", user=owner, group=owner, extra_groups=[], check=False)
    if reached.returncode:
        inside.rmdir()
        inside = Path(tempfile.mkdtemp(prefix="ml-assets-postgresql-"))
    shutil.chown(inside, owner, owner)
    return inside


def data_folder(record: ServersRecord) -> Path:
    """Return the folder of the database cluster."""
    return Path(record.database_folder) / "data"


def query(record: ServersRecord, statement: str, database: str = "postgres") -> str:
    """Return the answer of `psql`, without decoration. Raise `ServerFailed` with its message."""
    client = ["psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]
    address = ["-h", HOST, "-p", str(record.ports[POSTGRESQL]), "-U", DATABASE_USER, "-d", database]
    secret = {"PGPASSWORD": record.database_password, "PGCONNECT_TIMEOUT": "5"}
    return _run([*client, *address, "-c", statement], env=os.environ | secret).strip()


def make_database(record: ServersRecord, database: str) -> None:
    """Create an empty `database` unless it exists."""
    if not query(record, f"SELECT 1 FROM pg_database WHERE datname = '{database}'"):
        query(record, f'CREATE DATABASE "{database}"')


def forget_killed(record: ServersRecord) -> None:
    """Remove the lock file and the shared memory of a killed server.

    Only for a server that is known to be dead. Its own check takes its zombie predecessor, which may wait for seconds
    to be reaped, for a running server. A server that ended in order removes both itself.
    """
    pid_file = data_folder(record) / "postmaster.pid"
    if not pid_file.exists():
        return
    lines = pid_file.read_text().splitlines()
    # Line 7 is "key id" of the System V segment (PostgreSQL's miscadmin.h).
    if len(lines) >= 7 and len(words := lines[6].split()) == 2:
        subprocess.run(["ipcrm", "--shmem-id", words[1]], capture_output=True, check=False)
    pid_file.unlink()


def _owner() -> str | None:
    """Return the user it runs as; None for the present user."""
    return USER if os.geteuid() == 0 else None


def _program(name: str) -> Path:
    """Return the path of a server program. Debian keeps them off PATH, in a folder per version; the newest is used."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    found = versions[-1] if versions else shutil.which(name)
    if found is None:
        raise ServerFailed(
            f"PostgreSQL's program {name} is not installed: "
            "deployment/install-system-packages.sh deployment/system-packages-servers.txt"
        )
    return Path(found)


def _run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    user: str | None = None,
    env: dict[str, str] | None = None,
) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise ServerFailed(
            f"{command[0]} is not installed: "
            "deployment/install-system-packages.sh deployment/system-packages-servers.txt"
        ) from error
    if done.returncode:
        raise ServerFailed(f"{Path(command[0]).name} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
