"""MLflow's server of this very environment, on PostgreSQL and S3.

Its job runner stays off: seven idle workers of it take both cores of a small machine, and nothing here uses them.
"""

import signal
import sys
import urllib.request

from deployment.testbed.processes import Process, start, why_http_not
from deployment.testbed.servers.record import HOST, MLFLOW, S3, Record, server_environment, storage_variables


class MLflowServer:
    """Runs, metrics and the model registry."""

    name = MLFLOW
    ask = signal.SIGTERM
    seconds = 180.0
    """It imports for seconds on an idle machine, and makes its tables the first time."""

    def prepare(self, record: Record) -> None:
        """Nothing lacks before it starts."""

    def start(self, record: Record) -> Process:
        """Addresses with a password go into its environment: arguments are for all to see."""
        listen = ["--host", HOST, "--port", str(record.ports[MLFLOW]), "--workers", "1"]
        own = {
            "MLFLOW_BACKEND_STORE_URI": record.database_url("mlflow"),
            "MLFLOW_ARTIFACTS_DESTINATION": "s3://mlflow/artifacts",
            "MLFLOW_S3_ENDPOINT_URL": record.url(S3),
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }
        return start(
            MLFLOW,
            [sys.executable, "-m", "mlflow", "server", "--serve-artifacts", *listen],
            log=record.log(MLFLOW),
            env=server_environment(record, **own, **storage_variables(record)),
            cwd=record.path,
        )

    def why_not(self, record: Record) -> str:
        """Empty once it answers."""
        return why_http_not(f"{record.url(MLFLOW)}/health")

    def finish(self, record: Record) -> None:
        """Nothing to do once it runs."""

    def version(self, record: Record) -> str:
        """As the server says."""
        with urllib.request.urlopen(f"{record.url(MLFLOW)}/version", timeout=15) as answer:
            return f"MLflow {answer.read().decode()}"
