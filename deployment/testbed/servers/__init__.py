"""S3, PostgreSQL, lakeFS, MLflow, Kafka and Redis as ordinary processes on loopback, with their files in one folder.

Here: start and readiness check of each server (a module each), the record of running servers (`servers_record`), and
starting, ending, killing and counting leftovers of all together (`server_group`). The supervision of processes is
shared with the cluster: `deployment.testbed.processes`.
"""

from deployment.testbed.servers.server_group import NAMES, Servers
from deployment.testbed.servers.servers_record import ServersRecord

__all__ = ["NAMES", "Servers", "ServersRecord"]
