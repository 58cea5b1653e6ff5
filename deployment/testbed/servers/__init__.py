"""S3, PostgreSQL, lakeFS and MLflow as ordinary processes on loopback, with everything of theirs in one folder.

What belongs here: how each is started and asked whether it is ready (a module each), the record of what runs
(`record`), and starting, ending, killing and counting what is left of them together (`group`). Supervision of
processes is shared with the cluster and lives in `deployment.testbed.processes`.
"""

from deployment.testbed.servers.group import NAMES, Servers
from deployment.testbed.servers.record import Record

__all__ = ["NAMES", "Record", "Servers"]
