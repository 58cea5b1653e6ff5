"""MLflow's server from this environment, on PostgreSQL and S3, with the guard of its registry.

Its job runner stays off: its seven idle workers take both cores of a small machine, and nothing here uses them.
"""

import signal
import sys
import urllib.request

from deployment.testbed.processes import Process, start, why_http_not
from deployment.testbed.servers.servers_record import (
    HOST,
    MLFLOW,
    S3,
    ServersRecord,
    server_environment,
    variables,
)


class MLflowServer:
    """The MLflow server: runs, metrics and the model registry."""

    name = MLFLOW
    ask = signal.SIGTERM
    seconds = 180.0
    """Seconds until it is ready. Its imports take seconds on an idle machine, and the first start makes its tables."""

    def prepare(self, record: ServersRecord) -> None:
        """Do nothing: no preparation is needed."""

    def start(self, record: ServersRecord) -> Process:
        """Start it. Addresses with a password go into its environment, because every user can read arguments."""
        listen = ["--host", HOST, "--port", str(record.ports[MLFLOW]), "--workers", "1"]
        own = {
            "MLFLOW_BACKEND_STORE_URI": record.database_url("mlflow"),
            "MLFLOW_ARTIFACTS_DESTINATION": "s3://mlflow/artifacts",
            "MLFLOW_S3_ENDPOINT_URL": record.url(S3),
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "ML_ASSETS_HOME": str(record.path / "mlflow-home"),
        }
        return start(
            MLFLOW,
            [
                *(sys.executable, "-m", "mlflow", "server", "--app-name", "ml-assets-guard"),
                *("--serve-artifacts", *listen),
            ],
            log=record.log(MLFLOW),
            env=server_environment(record, **own, **variables(record)),
            cwd=record.path,
        )

    def why_not(self, record: ServersRecord) -> str:
        """Return the reason why it does not answer; empty once it does."""
        return why_http_not(f"{record.url(MLFLOW)}/health")

    def finish(self, record: ServersRecord) -> None:
        """Do nothing: no set-up is needed."""

    def version(self, record: ServersRecord) -> str:
        """Return the version that the server reports."""
        with urllib.request.urlopen(f"{record.url(MLFLOW)}/version", timeout=15) as answer:
            return f"MLflow {answer.read().decode()}"
