"""Home with trained models over PostgreSQL, and `ml-assets api` over it as a process of its own.

The ledger and Dagster's runs, events and schedules are in a PostgreSQL that starts here; MLflow and the lake are files.
The flights demo and three trainings of `store_demand` are real. Further runs of a dataset are copies of a real run, in
Dagster's tables, with other ids and times.
"""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from deployment.testbed.processes import free_port
from deployment.testbed.servers import Servers
from deployment.testbed.servers.postgresql import make_database, query
from ml_assets.context import Context
from ml_assets.context.home import point_dagster, read_settings
from resources.ledger import Person

ACCOUNTS = 20
"""Accounts that read: each may send 20 requests a second."""
TRAINED = ("2024-01-08", "2024-01-15", "2024-01-22")
"""Partitions of `store_demand` with a training."""
MODEL = "store_demand"
PROGRAM = Path(sys.executable).with_name("ml-assets")
_WITHIN_SECONDS = 300
_COPIES = """
CREATE TEMPORARY TABLE copies AS
  SELECT gen_random_uuid()::text AS id, number * interval '3 minutes' AS back, extract(epoch FROM
    number * interval '3 minutes') AS seconds FROM generate_series(1, {number}) AS number;
INSERT INTO runs (run_id, snapshot_id, pipeline_name, mode, status, run_body, partition, partition_set,
    create_timestamp, update_timestamp, start_time, end_time, backfill_id)
  SELECT copies.id, snapshot_id, pipeline_name, mode, status, replace(run_body, run_id, copies.id), partition,
    partition_set, create_timestamp - back, update_timestamp - back, start_time - seconds, end_time - seconds,
    backfill_id FROM runs, copies WHERE run_id = '{run}';
INSERT INTO run_tags (run_id, key, value)
  SELECT copies.id, key, value FROM run_tags, copies WHERE run_id = '{run}';
INSERT INTO event_logs (run_id, event, dagster_event_type, timestamp, step_key, asset_key, partition)
  SELECT copies.id, replace(event, run_id, copies.id), dagster_event_type, timestamp - back, step_key, asset_key,
    partition FROM event_logs, copies WHERE run_id = '{run}' ORDER BY back DESC, event_logs.id;
"""


@dataclass(frozen=True, kw_only=True)
class ApiHome:
    """Home that an API answers from."""

    context: Context
    """Context of this process over the home, which may write."""
    folder: Path

    @property
    def tokens(self) -> Sequence[str]:
        """Tokens of viewers."""
        return (self.folder / "tokens").read_text().splitlines()


@contextmanager
def api_home(folder: Path, *, large: bool, runs: int, stays: bool = False) -> Generator[ApiHome]:
    """Yield a home in `folder` with `runs` copied runs and, if `large`, the flights demo, over a PostgreSQL.

    `stays`: PostgreSQL runs on, so that a later call with this folder finds all of it.
    """
    servers = Servers(folder / "servers", ("postgresql",))
    try:
        record = servers.up()
        urls = {name: record.database_url(f"{name}-load") for name in ("ledger", "dagster")}
        # The processes of this home, and Dagster's parts in this one, read the same variables.
        os.environ |= {
            "ML_ASSETS_HOME": str(folder / "home"),
            "ML_ASSETS_LEDGER_URL": urls["ledger"],
            "ML_ASSETS_DAGSTER_URL": urls["dagster"],
        }
        is_new = not (folder / "tokens").exists()
        if is_new:
            for name in urls:
                make_database(record, f"{name}-load")
            _train(large)
        settings = read_settings()
        point_dagster(settings)
        home = ApiHome(context=Context.open(settings, writes=True), folder=folder)
        if is_new:
            copy = _COPIES.format(number=runs, run=newest_run(home.context, "datasets/sales"))
            query(record, f"{copy} ANALYZE;", "dagster-load")
            (folder / "tokens").write_text("\n".join(_add_accounts(home.context)))
        yield home
    finally:
        if not stays:
            servers.down()


def _train(large: bool) -> None:
    """Build tables and train, as a person does in a terminal."""
    if large:
        _run("demo", "--json")
    build_tables(TRAINED[-1])
    for key in TRAINED:
        _run("launch", MODEL, key)


def build_tables(last: str) -> None:
    """Build the tables behind `store_demand` up to the week `last`."""
    _run("launch", "datasets/sales", f"2023-01-02..{last}")
    _run("launch", "features/sales_features", f"2023-01-30..{last}")


def _run(*command: str) -> None:
    done = subprocess.run(
        [PROGRAM, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"ml-assets {' '.join(command)}: {done.stdout[-2000:]}")


def _add_accounts(context: Context) -> list[str]:
    """Add the accounts that read, each as a viewer; return their tokens. An administrator launched all runs."""
    ledger = context.project.platform.ledger
    root = ledger.accounts.add_by_token("root", Person.unchecked("benchmark"), is_administrator=True)
    by = Person.proved(ledger.accounts.of_token(root), "token")
    ledger.launches.record(context.project.instance.get_run_ids(), by, "launchRun")
    return [ledger.accounts.add_by_token(f"reader-{number}", by) for number in range(ACCOUNTS)]


def newest_run(context: Context, asset: str, partition: str | None = None) -> str:
    """Return the id of the newest run that made `asset`, or this partition of it."""
    asked = dg.AssetRecordsFilter(
        dg.AssetKey(asset.split("/")), asset_partitions=None if partition is None else [partition]
    )
    return context.project.instance.fetch_materializations(asked, limit=1).records[0].run_id


@contextmanager
def served(home: ApiHome, *before: str | Path) -> Generator[str]:
    """Run `ml-assets api` as a process; yield its address. Its webserver is away: no read asks it.

    `before` are words before the command, such as those of a profiler.
    """
    port = free_port()
    command = [PROGRAM, "api", "--webserver", "http://127.0.0.1:9", "--port", str(port)]
    with (home.folder / "api.log").open("wb") as log:
        server = subprocess.Popen([*before, *command], stdout=log, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + _WITHIN_SECONDS
        while not _answers(address):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the API did not start: {(home.folder / 'api.log').read_text()[-2000:]}")
            time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False
