"""The alert rules and the dashboard in a real Prometheus, which reads each kind of server of the platform."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import httpx
import pytest
import yaml

from deployment.testbed.processes import free_port
from deployment.testbed.prometheus import prometheus_folder
from ml_assets.foundation.checkout import ROOT
from ml_assets_tests.api.conftest import ServedApi, running_api
from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from resources.launcher.local import LocalLauncher
from resources.settings import Settings

FILES = ROOT / "deployment" / "helm" / "ml-assets" / "files"
ALERTS = FILES / "alerts.yaml"
PAGE = ROOT / "docs" / "how-to" / "monitoring.md"
PATIENCE_SECONDS = 120.0
FAILED_SALES = {"alertname": "RunFailed", "name": "datasets/sales", "severity": "warning"}
NEED_A_GPU = {"gpu_utilization_pct"}
METRIC = re.compile(r"\b(?:ml_assets|training|gpu)_\w+")


def expressions() -> list[str]:
    """Return every expression of the rules and of the dashboard."""
    rules = [
        rule["expr"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]
    panels = json.loads((FILES / "dashboard.json").read_text())["panels"]
    return rules + [target["expr"] for panel in panels for target in panel.get("targets", ())]


FIRES = {
    "RunFailed": {'ml_assets_runs_ended_total{name="shop",status="failed"}': "0+0x30 1+0x400"},
    "RunsWait": {'ml_assets_runs{status="queued"}': "3+0x400"},
    "PartitionsLate": {'ml_assets_late_partitions{table="datasets/sales"}': "3+0x400"},
    "PartitionRejected": {'ml_assets_rejected_partitions{table="datasets/sales"}': "0+0x10 1+0x400"},
    "ApiFails": {
        'ml_assets_api_requests_total{status="503"}': "0+1x400",
        'ml_assets_api_requests_total{status="200"}': "0+9x400",
    },
    "PartDoesNotAnswer": {'ml_assets_part_answers{part="tables"}': "1+0x10 0+0x400"},
    "ProxyFails": {
        'ml_assets_proxy_requests_total{status="502"}': "0+1x400",
        'ml_assets_proxy_requests_total{status="200"}': "0+9x400",
    },
    "RegistryFails": {
        'ml_assets_guard_requests_total{status="503"}': "0+1x400",
        'ml_assets_guard_requests_total{status="200"}': "0+9x400",
    },
    "TrainingStandsStill": {'training_last_step_timestamp_seconds{model="shop"}': "0+60x10 600+0x400"},
    "TrainingWaitsForData": {'training_data_wait_share{model="shop"}': "0.4+0x400"},
    "ServingFails": {
        'ml_assets_serving_errors_total{model="shop",kind="ValueError"}': "0+1x400",
        'ml_assets_serving_requests_total{model="shop"}': "0+50x400",
    },
    "ServingSlow": {
        'ml_assets_serving_latency_seconds_bucket{model="shop",le="0.25"}': "0+90x400",
        'ml_assets_serving_latency_seconds_bucket{model="shop",le="0.5"}': "0+100x400",
        'ml_assets_serving_latency_seconds_bucket{model="shop",le="+Inf"}': "0+100x400",
    },
    "ServingVersionBroken": {'ml_assets_serving_problems{model="shop"}': "1+0x400"},
    "ServingWithoutLedger": {"ml_assets_serving_ledger_unanswered_seconds": "0+60x400"},
    "RequestsNotLogged": {"ml_assets_serving_log_dropped_rows_total": "0+0x10 0+1x400"},
}
"""Alert → series from minute to minute that fire it within 75 minutes."""
QUIET = {
    'ml_assets_runs_ended_total{name="shop",status="failed"}': "7+0x400",
    'ml_assets_runs_ended_total{name="shop",status="succeeded"}': "0+1x400",
    'ml_assets_runs{status="queued"}': "3+0x40 0+0x4 3+0x400",
    'ml_assets_late_partitions{table="datasets/sales"}': "1+0x400",
    'ml_assets_rejected_partitions{table="datasets/sales"}': "0+0x400",
    'ml_assets_api_requests_total{status="503"}': "0+1x400",
    'ml_assets_api_requests_total{status="404"}': "0+50x400",
    'ml_assets_proxy_requests_total{status="502"}': "0+1x400",
    'ml_assets_proxy_requests_total{status="403"}': "0+50x400",
    'ml_assets_guard_requests_total{status="503"}': "0+1x400",
    'ml_assets_guard_requests_total{status="403"}': "0+50x400",
    'ml_assets_part_answers{part="tables"}': "1+0x20 0+0x2 1+0x400",
    'training_last_step_timestamp_seconds{model="shop"}': "0+60x400",
    'training_data_wait_share{model="shop"}': "0.1+0x400",
    'ml_assets_serving_errors_total{model="shop",kind="refused"}': "0+40x400",
    'ml_assets_serving_requests_total{model="shop"}': "0+50x400",
    'ml_assets_serving_latency_seconds_bucket{model="shop",le="0.25"}': "0+100x400",
    'ml_assets_serving_latency_seconds_bucket{model="shop",le="+Inf"}': "0+100x400",
    'ml_assets_serving_problems{model="shop"}': "0+0x400",
    "ml_assets_serving_ledger_unanswered_seconds": "0+10x20 0+0x400",
    "ml_assets_serving_log_dropped_rows_total": "12+0x400",
}
"""Series of a platform in good health: no alert may fire."""


@pytest.fixture(scope="session")
def programs() -> Path:
    return prometheus_folder()


def names_of_alerts() -> list[str]:
    return [
        rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]


def evaluated(programs: Path, folder: Path, series: dict[str, str], fires: str | None) -> str:
    """Let promtool evaluate all rules over `series`; return what it says about those that are not as expected."""
    asked = [
        {"alertname": name, "eval_time": "75m", "exp_alerts": []}
        for name in names_of_alerts()
        if name != fires
    ]
    test = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": asked,
            }
        ],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump(test))
    said = subprocess.run([programs / "promtool", "test", "rules", file], capture_output=True, text=True)
    return said.stdout + said.stderr if said.returncode else ""


def test_no_alert_fires_on_a_platform_in_good_health(programs: Path, tmp_path: Path) -> None:
    assert evaluated(programs, tmp_path, QUIET, None) == ""


@pytest.mark.parametrize("alert", names_of_alerts())
def test_each_alert_fires_for_its_own_fault_alone(programs: Path, tmp_path: Path, alert: str) -> None:
    assert evaluated(programs, tmp_path, FIRES[alert], alert) == "", "another one fires, too"
    assert f"name: {alert}," in evaluated(programs, tmp_path, FIRES[alert], None).replace("alertname", "name")


def test_the_page_has_a_section_for_each_alert() -> None:
    sections = re.findall(r"^### (\w+)$", PAGE.read_text(), re.M)
    assert sections == names_of_alerts()


@dataclass(frozen=True)
class Watching:
    """Prometheus at `address`, which reads the platform each second."""

    address: str

    def ask(self, path: str, **named: str) -> Any:
        return httpx.get(f"{self.address}/api/v1/{path}", params=named, timeout=30).json()["data"]

    def values(self, expression: str) -> list[float]:
        return [float(one["value"][1]) for one in self.ask("query", query=expression)["result"]]


def wait_for(what: Callable[[], Any], about: str) -> Any:
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.5)
    raise AssertionError(f"{about}: not within {PATIENCE_SECONDS:g} s")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    with running_api(Settings(home=tmp_path_factory.mktemp("home"))) as running:
        yield running


@pytest.fixture(scope="module")
def training_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of the page of a real training, which lasts as long as the tests."""
    folder, port, stop = tmp_path_factory.mktemp("training"), free_port(), threading.Event()
    snapshot = small_snapshot(folder / "snapshot")
    job = small_job(snapshot, metrics_port=port, epochs=10_000, patience=10_000, pace=0.02)

    def hear(_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt

    def train() -> None:
        with suppress(KeyboardInterrupt):
            LocalLauncher().run(job, folder / "job", hear, lambda _: None)

    thread = threading.Thread(target=train)
    thread.start()
    yield port
    stop.set()
    thread.join()


@pytest.fixture(scope="module")
def watching(
    api: ServedApi,
    training_port: int,
    servers: RunningServers,
    programs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Watching]:
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    serving, proxy, review = free_port(), free_port(), free_port()
    rules = yaml.safe_load(ALERTS.read_text())
    for rule in rules["groups"][0]["rules"]:
        rule.pop("for", None)  # an hour is long for a test
    (folder / "alerts.yaml").write_text(yaml.safe_dump(rules))
    (folder / "token").write_text(api.tokens["viewer"])
    example = yaml.safe_load(PAGE.read_text().partition("```text\n")[2].partition("```")[0])
    ports = {
        "ml-assets-api": int(api.address.rpartition(":")[2]),
        "ml-assets-serving": serving,
        "ml-assets-trainings": training_port,
        "ml-assets-proxy": proxy,
        "ml-assets-review": review,
        "ml-assets-mlflow": servers.record.ports["mlflow"],
    }
    for one in example["scrape_configs"]:
        one["static_configs"] = [{"targets": [f"127.0.0.1:{ports[one['job_name']]}"]}]
        if "authorization" in one:
            one["authorization"]["credentials_file"] = str(folder / "token")
    example |= {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "alerts.yaml")],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(example))
    ours = [
        ("serve", "store_demand", "--port", str(serving)),
        ("proxy", "--webserver", api.webserver, "--port", str(proxy)),
        ("review", "--port", str(review)),
    ]
    watch = [
        programs / "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    home = os.environ | {"ML_ASSETS_HOME": str(api.platform.settings.home)}
    with (folder / "log").open("wb") as log:
        processes = [
            subprocess.Popen(command, env=home, stdout=log, stderr=subprocess.STDOUT)
            for command in (*([Path(sys.executable).with_name("ml-assets"), *one] for one in ours), watch)
        ]
        try:
            found = Watching(f"http://127.0.0.1:{port}")
            wait_for(lambda: _answers(found.address), "Prometheus answers")
            yield found
        finally:
            for process in processes:
                process.terminate()
                process.wait(60)


def _answers(address: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"{address}/-/ready", timeout=5).status_code == 200
    return False


def test_the_configuration_of_the_page_reads_all_kinds_of_servers(watching: Watching) -> None:
    wait_for(lambda: len(watching.values("up == 1")) == 6, "six targets are up")


def test_a_refused_request_counts_in_prometheus(watching: Watching) -> None:
    (proxy,) = [
        one["labels"]["instance"]
        for one in watching.ask("targets")["activeTargets"]
        if one["labels"]["job"] == "ml-assets-proxy"
    ]
    for path in ("/runs", "/runs/of/a/person"):
        wait_for(lambda path=path: _status(f"http://{proxy}{path}") == 401, "the proxy asks who that is")
    refused = 'ml_assets_proxy_requests_total{path="/{path:path}",status="401"}'
    wait_for(lambda: watching.values(refused) == [2.0], "both are one series")


def _status(url: str) -> int | None:
    with suppress(httpx.TransportError):
        return httpx.get(url, timeout=30).status_code
    return None


def test_every_metric_of_rules_and_dashboard_exists(watching: Watching) -> None:
    wanted = {name for one in expressions() for name in METRIC.findall(one)} - NEED_A_GPU

    def missing() -> set[str]:
        known = {one["metric"] for one in watching.ask("targets/metadata")}
        ends = ("", "_total", "_bucket")
        return {one for one in wanted if not any(one.removesuffix(end) in known for end in ends)}

    wait_for(lambda: not missing(), f"a server that has {missing()}")


def test_a_failed_run_fires_its_alert(watching: Watching, api: ServedApi) -> None:
    failed = 'ml_assets_runs_ended_total{name="datasets/sales",status="failed"}'
    wait_for(lambda: watching.values(failed) == [0.0], "the series begins")
    run = dg.DagsterRun(job_name="any", asset_selection=frozenset({dg.AssetKey(["datasets", "sales"])}))
    api.context.project.instance.add_run(run)
    api.context.project.instance.report_run_failed(run)

    def firing() -> bool:
        alerts = watching.ask("alerts")["alerts"]
        return any(one["labels"] == FAILED_SALES and one["state"] == "firing" for one in alerts)

    wait_for(firing, "the alert fires")
