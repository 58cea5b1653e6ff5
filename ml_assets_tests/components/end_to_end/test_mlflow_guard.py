"""A real MLflow server with `--app-name ml-assets-guard`: whatever a client sends, readers see the ledger's decisions.

Routes are those of the server's own table. Methods of the store and words of refusals: `release/test_mlflow_guard`.
A server with PostgreSQL: `servers/test_mlflow_guard`.
"""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import mlflow
import pytest

from deployment.testbed.processes import free_port, start, stop, wait_ready, why_http_not
from ml_assets.extras.governance.mlflow_guard import OWN_PATH
from ml_assets.model.release.bundle_store import Bundle, BundleStore
from ml_assets.model.release.mlflow_view import DECIDED_TAGS, differences
from ml_assets.model.release.promotion import promote, register
from ml_assets.model.release.registry import Registry
from ml_assets.model.release.releases import Releases
from ml_assets.model.release.reviews import accept_rules
from ml_assets.model.release.rules import NO_RULES, Rules
from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.release.conftest import bundle, contents, rows, store, variant_of
from ml_assets_tests.release.recorded_evaluations import record_evaluation
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, days, keys
from resources.ledger import Ledger, Person, TrainedOn
from resources.tracking.mlflow_client import TrackerRefused, open_client

__all__ = ["bundle", "contents", "rows", "store"]  # fixtures

pytestmark = pytest.mark.nightly

REGISTRY = {
    "POST registered-models/create": "guarded",
    "POST registered-models/rename": "guarded",
    "PATCH registered-models/update": "harmless",
    "DELETE registered-models/delete": "guarded",
    "GET registered-models/get": "reads",
    "GET registered-models/search": "reads",
    "GET registered-models/get-latest-versions": "reads",
    "POST registered-models/get-latest-versions": "reads",
    "POST registered-models/set-tag": "guarded",
    "DELETE registered-models/delete-tag": "guarded",
    "POST registered-models/alias": "guarded",
    "DELETE registered-models/alias": "guarded",
    "GET registered-models/alias": "reads",
    "POST model-versions/create": "guarded",
    "PATCH model-versions/update": "harmless",
    "POST model-versions/transition-stage": "guarded",
    "DELETE model-versions/delete": "guarded",
    "GET model-versions/get": "reads",
    "GET model-versions/search": "reads",
    "GET model-versions/get-download-uri": "reads",
    "GET model-versions/get-artifact": "reads",
    "POST model-versions/set-tag": "guarded",
    "DELETE model-versions/delete-tag": "guarded",
}
"""Method and path of each route of the registry → what it does."""
ELSEWHERE = {
    *(
        "artifacts",
        "datasets",
        "experiments",
        "gateway",
        "gateway-proxy",
        "get-artifact",
        "get-trace-artifact",
    ),
    *(
        "graphql",
        "health",
        "issues",
        "jobs",
        "label-schemas",
        "logged-models",
        "mcp-servers",
        "metrics",
        "mpu",
    ),
    *("presigned", "prompt-optimization", "review-queues", "runs", "scorers", "server-info", "static-files"),
    *(
        "traces",
        "ui-telemetry",
        "upload-artifact",
        "version",
        "webhooks",
        "workspaces",
        "assistant",
        "build",
        "",
    ),
    *("unified-traces", "get-online-trace-details", "v1", "genai", "demo", "scorer"),
}
"""First word of the paths of all other routes. They only read the registry, or do not reach it."""
LIES = {
    "name": "small",
    "new_name": "taken",
    "source": "s3://elsewhere/model",
    "stage": "Production",
    "archive_existing_versions": True,
    "value": "true",
    "description": "the best of all",
    "filter": "name = 'small'",
    "query": 'mutation { testMutation(inputString: "x") { output } }',
}
"""Arguments with which a client may try to change what a reader sees."""
PLAIN = {"name": "small", "alias": "production", "version": "1"}
GRAPHQL = "POST", "/graphql"


@dataclass(frozen=True)
class Guarded:
    """A running server, and the platform on it."""

    url: str
    folder: Path
    """Has the ledger, `ledger.db`."""
    releases: Releases
    registry: Registry

    def seen(self) -> Mapping[str, Any]:
        """Return aliases, versions, tags and stages of `small`, as a reader of the registry finds them."""
        client = open_client(self.url)
        [model] = client.search_registered_models("name = 'small'")
        versions = client.search_model_versions("name = 'small'")
        return {
            "aliases": {name: model.aliases.get(name) for name in ("production", "canary")},
            "versions": {
                one.version: (
                    one.source,
                    one.current_stage,
                    {key: one.tags.get(key) for key in (*DECIDED_TAGS, "bundle_digest", "semantic_version")},
                )
                for one in versions
                if one.source.startswith(self.registry.bundles)
            },
        }


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, bundle: Bundle, store: BundleStore, _empty_tracker: Path
) -> Iterator[Guarded]:
    """The platform promotes through the guard: version 1 is in production, 2 the canary, 3 staging.

    Registration goes past the server, because MLflow's servers take no folder of their own machine as a source.
    """
    folder = tmp_path_factory.mktemp("guarded")
    orders = OrdersTable(folder)
    orders.publish(days(3))
    database = f"sqlite:///{shutil.copy(_empty_tracker, folder / 'mlflow.db')}"
    behind = Releases(orders.ledger, Registry(database, store.address), store, orders.store)
    settings = {
        "ML_ASSETS_HOME": str(folder / "home"),
        "ML_ASSETS_LEDGER_URL": f"sqlite:///{folder / 'ledger.db'}",
        "ML_ASSETS_ARTIFACTS_URL": store.address.removesuffix("/bundles"),
    }
    with mlflow_server(folder, database, settings, "--app-name", "ml-assets-guard") as url:
        registry = Registry(url, store.address)
        releases = Releases(orders.ledger, registry, store, orders.store)
        client = open_client(url)
        run_id = client.create_run(client.create_experiment("small")).info.run_id
        first, *_, last = keys(3)
        window = TrainedOn(
            commit=orders.store.resolve("main"), table=ORDERS, first=first, last=last, partitions=3
        )
        with_canary = Rules.model_validate({"canary": {"bake_hours": 24}})
        for number, rules in ((1, NO_RULES), (2, with_canary), (3, None)):
            built = variant_of(bundle, store, fingerprint=str(number) * 64)
            record_evaluation(orders.ledger, built, trained_on=window)
            register(behind, built, run_id=run_id, links={})
            if rules is not None:
                accept_rules(
                    releases, "small", rules, by=Person.unchecked("lead"), reason=f"for number {number}"
                )
                promote(
                    releases,
                    "small",
                    number,
                    by=Person.unchecked("ada"),
                    reason=f"number {number}",
                    rules=rules,
                )
        yield Guarded(url, folder, releases, registry)


@contextmanager
def mlflow_server(
    folder: Path, database: str, settings: Mapping[str, str], *options: str, workers: int = 1
) -> Generator[str]:
    """Run a real MLflow server; its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = start(
        "mlflow",
        [
            *(sys.executable, "-m", "mlflow", "server", *options),
            *("--host", "127.0.0.1", "--port", str(port), "--workers", str(workers)),
        ],
        log=folder / "log.txt",
        env={
            **os.environ,
            "HOME": str(folder / "home"),
            "MLFLOW_BACKEND_STORE_URI": database,
            "MLFLOW_ARTIFACTS_DESTINATION": str(folder / "mlartifacts"),
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            **settings,
        },
        cwd=folder,
    )
    try:
        wait_ready(server, lambda: why_http_not(f"{url}/health"), 300)
        yield url
    finally:
        stop(server)


def routes() -> Iterator[tuple[str, str]]:
    """Yield method and path of each route that the server answers: those of Flask, and those of FastAPI above it."""
    from mlflow.server import app
    from mlflow.server.fastapi_app import app as over_asgi

    for rule in app.url_map.iter_rules():
        for method in (rule.methods or set[str]()) - {"HEAD", "OPTIONS"}:
            yield method, rule.rule
    for included in over_asgi.routes:
        if hasattr(included, "effective_route_contexts"):
            for one in included.effective_route_contexts():  # type: ignore[attr-defined]
                for method in one.methods - {"HEAD", "OPTIONS"}:
                    yield method, one.path


def below(path: str) -> str:
    """Return a path without MLflow's prefixes."""
    return re.sub(r"^/((ajax-)?api/\d\.\d/?)?(mlflow(-artifacts)?/)?", "", path)


def is_of_registry(path: str) -> bool:
    return below(path).startswith(("registered-models", "model-versions"))


def test_every_route_of_the_server_is_known() -> None:
    """A route that a later MLflow adds fails here, until somebody has read what it changes."""
    every = list(routes())
    assert len(every) > 400
    found = {f"{method} {below(path)}" for method, path in every if is_of_registry(path)}
    assert found == set(REGISTRY)
    assert OWN_PATH not in {path for _, path in every}
    others = {below(path).partition("/")[0] for _, path in every if not is_of_registry(path)}
    assert others == ELSEWHERE


def test_only_mlflows_store_of_the_registry_writes_its_tables() -> None:
    """Other code of the server would get past the guard. Workspaces do; the guard does not start with them."""
    folder = Path(mlflow.__file__).parent
    writers = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if "model_registry.dbmodels" in (text := path.read_text()) or "SqlRegisteredModel" in text
    }
    writers = {path for path in writers if not path.startswith(("store/db_migrations", "store/fs2db"))}
    assert writers == {
        "store/db/utils.py",
        "store/db/workspace_move.py",
        "store/model_registry/dbmodels/models.py",
        "store/model_registry/sqlalchemy_store.py",
        "store/workspace/sqlalchemy_store.py",
    }


def test_the_platform_decides_through_the_guard(guarded: Guarded) -> None:
    assert guarded.seen()["aliases"] == {"production": "1", "canary": "2"}
    stages = {number: tags["stage"] for number, (_, _, tags) in guarded.seen()["versions"].items()}
    assert stages == {"1": "production", "2": "canary", "3": "staging"}
    assert differences(guarded.releases.registry, guarded.releases.log, "small") == []


def test_no_route_of_the_registry_changes_what_a_reader_sees(guarded: Guarded) -> None:
    before, denied = guarded.seen(), set[str]()
    with httpx.Client(base_url=guarded.url, timeout=200) as client:
        for method, path in [*((method, path) for method, path in routes() if is_of_registry(path)), GRAPHQL]:
            for alias, version, key in (
                ("production", "2", "stage"),
                ("canary", "1", "bundle_digest"),
                ("Production", "3", "mlflow.prompt.is_prompt"),
            ):
                if (method, below(path), version) == ("DELETE", "model-versions/delete", "3"):
                    continue  # a version without a role may go
                given = LIES | {"alias": alias, "version": version, "key": key}
                given |= {"tags": [{"key": key, "value": "true"}]}
                # Handlers read the query of GET and the body of all others.
                answer = client.request(
                    method, path, **({"params": PLAIN} if method == "GET" else {"json": given})
                )
                if "PERMISSION_DENIED" in answer.text:
                    denied.add(f"{method} {below(path)}")
                if method == "GET":
                    break
            else:
                assert guarded.seen() == before, f"{method} {path}"
    assert denied == {route for route, kind in REGISTRY.items() if kind == "guarded"}
    assert differences(guarded.releases.registry, guarded.releases.log, "small") == []


def test_requests_are_counted_over_all_processes_of_the_server(tracking_uri: str, tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    counts.mkdir()
    settings = {
        "ML_ASSETS_HOME": str(tmp_path / "home"),
        "ML_ASSETS_LEDGER_URL": f"sqlite:///{tmp_path / 'ledger.db'}",
        "PROMETHEUS_MULTIPROC_DIR": str(counts),
    }
    with mlflow_server(tmp_path, tracking_uri, settings, "--app-name", "ml-assets-guard", workers=2) as url:
        for number in range(20):  # each over a connection of its own, which either process may take
            asked = httpx.get(
                f"{url}/api/2.0/mlflow/runs/get", params={"run_id": f"{number:032x}"}, timeout=60
            )
            assert asked.status_code == 404
        said = httpx.get(f"{url}{OWN_PATH}/metrics", timeout=60).text
    line = 'ml_assets_guard_requests_total{method="GET",path="/api/2.0/mlflow/runs/get",status="404"} 20.0'
    assert line in said.splitlines()
    assert len(list(counts.glob("counter_*.db"))) == 2, "both processes answered"


def said_by_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, ledger: Path) -> str:
    """Return the line about the guard of the server at `url`, for a project with this ledger."""
    monkeypatch.setenv("ML_ASSETS_TRACKING_URI", url)
    monkeypatch.setenv("ML_ASSETS_LEDGER_URL", f"sqlite:///{ledger}")
    said = Terminal(tmp_path)("doctor").out
    (line,) = [one for one in said.splitlines() if one[6:22].strip() == "guard"]
    return line


def test_the_guard_says_which_ledger_it_reads(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own path only reads. An older copy of the ledger has all rows that the guard knows, but not the newest."""
    assert httpx.post(f"{guarded.url}{OWN_PATH}", timeout=60).status_code == 405
    ledger = guarded.folder / "ledger.db"
    assert said_by_doctor(tmp_path, monkeypatch, guarded.url, ledger).startswith(
        "ok    guard            reads this ledger, "
    )
    ahead, other = Ledger(f"sqlite:///{tmp_path / 'ahead.db'}"), Ledger(f"sqlite:///{tmp_path / 'other.db'}")
    with closing(sqlite3.connect(ledger)) as source, closing(sqlite3.connect(tmp_path / "ahead.db")) as copy:
        source.backup(copy)
    for one in (ahead, other):
        one.accounts.add_by_token("ada", Person.unchecked("ada"), is_administrator=True)
    for one, why in (
        ("ahead", "the guard reads another ledger or an old copy"),
        ("other", "the guard reads another ledger, or"),
    ):
        said = said_by_doctor(tmp_path, monkeypatch, guarded.url, tmp_path / f"{one}.db")
        assert said.startswith(f"warn  guard            {why}")
        assert "start the MLflow server with the ML_ASSETS_LEDGER_URL of this project" in said


def test_a_server_without_the_guard_is_named_with_the_remedy(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracking_uri: str
) -> None:
    with mlflow_server(tmp_path, tracking_uri, {}) as url:
        said = said_by_doctor(tmp_path, monkeypatch, url, guarded.folder / "ledger.db")
    assert said.startswith("warn  guard            the MLflow server runs without its guard")
    assert said.endswith("start it as mlflow server --app-name ml-assets-guard")


def test_mlflows_own_client_is_told_who_decided(guarded: Guarded) -> None:
    with pytest.raises(
        TrackerRefused, match=r"small@production is version 1 by the ledger \(by ada at .* number 1\)"
    ):
        guarded.registry.set_alias("small", "production", 3)
    guarded.registry.set_alias("small", "production", 1)


def test_requests_at_once_do_not_get_past_the_guard(guarded: Guarded) -> None:
    """The server's threads share one store."""

    def move(number: int) -> bool:
        try:
            guarded.registry.set_alias("small", "production", 1 + number % 3)
        except TrackerRefused:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        moved = list(pool.map(move, range(60)))
    assert moved == [number % 3 == 0 for number in range(60)]
    assert guarded.seen()["aliases"] == {"production": "1", "canary": "2"}


def test_the_guard_bounds_what_arrives_before_mlflow(guarded: Guarded) -> None:
    """Its uvicorn is started by MLflow, with MLflow's options."""
    assert httpx.get(f"{guarded.url}/health").status_code == 200
    large = {"x-large": "a" * 70_000}
    assert httpx.get(f"{guarded.url}/health", headers=large).status_code == 431


def test_a_server_with_parts_that_the_guard_does_not_cover_does_not_start(tmp_path: Path) -> None:
    """Jobs run in processes of their own, with the address of the database."""
    program = "from ml_assets.extras.governance.mlflow_guard import create_app; create_app()"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "set MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false" in ended.stderr
