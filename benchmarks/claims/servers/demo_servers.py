"""The demo on real servers beside the embedded demo: the cost of lakeFS, S3, PostgreSQL and MLflow in seconds.

Runs only by name (`make bench ARGS=demo_servers`): it starts and ends the four servers as the tests do. Both demos run
as whole processes from empty homes, in turn, with the same command; only the environment differs.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._report import Result, emit, parse_args
from deployment.testbed.servers import Servers
from deployment.testbed.servers.postgresql import make_database
from deployment.testbed.servers.servers_record import ServersRecord, variables
from ml_assets.foundation.checkout import ROOT

PROGRAM = Path(sys.executable).with_name("ml-assets")
MOST = 1.5


def embedded(home: Path) -> tuple[float, dict[str, Any]]:
    """Return the wall seconds and the JSON of one demo with only a home."""
    return _demo({"ML_ASSETS_HOME": str(home)})


def on_servers(home: Path, record: ServersRecord, turn: int) -> tuple[float, dict[str, Any]]:
    """Return the wall seconds and the JSON of one demo with its own lake, databases and prefixes."""
    for database in (f"ledger-{turn}", f"dagster-{turn}"):
        make_database(record, database)
    environment = variables(record) | {
        "ML_ASSETS_HOME": str(home),
        "ML_ASSETS_ENVIRONMENT": f"demo-{turn}",
        "ML_ASSETS_LAKE_STORAGE": f"s3://lake/demo-{turn}",
        "ML_ASSETS_ARTIFACTS_URL": f"s3://artifacts/demo-{turn}",
        "ML_ASSETS_LEDGER_URL": record.database_url(f"ledger-{turn}"),
        "ML_ASSETS_DAGSTER_URL": record.database_url(f"dagster-{turn}"),
    }
    subprocess.run(
        [PROGRAM, "lake", "init"], cwd=ROOT, env=os.environ | environment, stdout=sys.stderr, check=True
    )
    return _demo(environment)


def _demo(environment: dict[str, str]) -> tuple[float, dict[str, Any]]:
    began = time.perf_counter()
    done = subprocess.run(
        [PROGRAM, "demo", "--json"],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return time.perf_counter() - began, json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Measure; return exit status 1 if the bar does not hold."""
    arguments = parse_args(__doc__)
    seconds: dict[str, list[float]] = {"servers": [], "embedded": []}
    stages: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        group = Servers(Path(folder) / "servers", ("s3", "postgresql", "lakefs", "mlflow"))
        try:
            record = group.up()
            for turn in range(1 if arguments.quick else 3):
                here, there = Path(folder) / f"here-{turn}", Path(folder) / f"there-{turn}"
                for where, (took, facts) in {
                    "embedded": embedded(here),
                    "servers": on_servers(there, record, turn),
                }.items():
                    seconds[where].append(took)
                    stages[where] = facts["stages"]
        finally:
            group.down()
    if not arguments.json:
        print("\n".join(f"stages {where}: {found}" for where, found in stages.items()))
    value, peer = statistics.median(seconds["servers"]), statistics.median(seconds["embedded"])
    result = Result(
        name=f"demo on lakeFS, S3, PostgreSQL and MLflow, over {len(seconds['servers'])}",
        value=value,
        unit="s",
        peers={"embedded": peer},
        ratio=value / peer,
        bar=f"≤ {MOST} × embedded",
        ok=value <= MOST * peer,
    )
    return emit([result], json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
