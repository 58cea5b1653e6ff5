"""The way of a release on real servers: registered, approved, canary, production, served, back, and proved.

PostgreSQL has the ledger, S3 the bundles, lakeFS the rows. A second MLflow server on the same database guards this
installation's ledger.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from pydantic import SecretStr
from starlette.testclient import TestClient

from deployment.testbed.processes import free_port, start, stop, wait_ready, why_http_not
from deployment.testbed.servers.postgresql import query
from deployment.testbed.servers.servers_record import server_environment
from ml_assets.extras.governance.dossier.signature import SigningKey
from ml_assets.extras.governance.dossier.stored import write_dossier
from ml_assets.model.release.known_versions import stage_reader_of
from ml_assets.model.release.mlflow_view import differences
from ml_assets.model.release.promotion import promote, register
from ml_assets.model.release.releases import (
    NotPromotable,
    NotReviewable,
    bundles_of,
    registry_of,
    releases_of,
)
from ml_assets.model.release.reviews import accept_rules, review
from ml_assets.model.release.rollback import demote, rollback
from ml_assets.model.release.rules import NO_RULES, Rules
from ml_assets.model.release.signing_keys import create_keys
from ml_assets.use.serving.answering import Limits
from ml_assets.use.serving.app import make_app
from ml_assets.use.serving.canary import shared_secret
from ml_assets.use.serving.log_retention import LogBounds, LogRetention
from ml_assets.use.serving.openapi import example_of
from ml_assets.use.serving.request_log import RequestLog
from ml_assets.use.serving.server import started
from ml_assets.use.serving.watch import Declaration, StageWatch
from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.release.conftest import variant_of
from ml_assets_tests.release.recorded_evaluations import record_evaluation
from ml_assets_tests.servers.installed.conftest import Installed
from ml_assets_tests.servers.running_servers import RunningServers
from resources.ledger import NewEvaluation, Person
from resources.platform import Platform
from resources.settings import Settings
from resources.tracking.mlflow_client import open_client


@dataclass(frozen=True)
class Way:
    """The installation behind its guard, and the persons."""

    model: str
    ada: Platform
    """Administrator."""
    bob: Platform
    """Reviewer."""
    variables: dict[str, str]


@pytest.fixture
def way(installed: Installed, servers: RunningServers, tmp_path: Path) -> Iterator[Way]:
    """A copy of the ledger, because its first account binds all who decide; and a guard of this copy."""
    record, port = servers.record, free_port()
    made = installed.settings.resolved_ledger_url.reveal().rpartition("/")[2]
    query(record, f'CREATE DATABASE "{made}-way" TEMPLATE "{made}-trained"')
    changes = {
        "home": str(tmp_path / "home"),
        "ledger_url": record.database_url(f"{made}-way"),
        "tracking_uri": f"http://127.0.0.1:{port}",
    }
    settings = Settings(**{**_plain(installed.settings), **changes})
    variables = servers.variables(settings)
    guard = start(
        "guard",
        [
            *(sys.executable, "-m", "mlflow", "server", "--app-name", "ml-assets-guard"),
            *("--serve-artifacts", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        ],
        log=tmp_path / "guard.txt",
        env=server_environment(
            record,
            **variables,
            MLFLOW_BACKEND_STORE_URI=record.database_url("mlflow"),
            MLFLOW_ARTIFACTS_DESTINATION="s3://mlflow/artifacts",
            MLFLOW_S3_ENDPOINT_URL=record.url("s3"),
            MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",
            MLFLOW_DISABLE_TELEMETRY="true",
        ),
        cwd=tmp_path,
    )
    try:
        wait_ready(guard, lambda: why_http_not(f"http://127.0.0.1:{port}/health"), 300)
        accounts = Platform(settings).ledger.accounts
        root = accounts.add_by_token("ada", Person.unchecked("ada"), is_administrator=True)
        ada = _as(settings, root)
        bob = _as(settings, accounts.add_by_token("bob", ada.acting, reason="reviews"))
        yield Way(installed.model, ada, bob, variables)
    finally:
        stop(guard)


def _plain(settings: Settings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in Settings.model_fields}


def _as(settings: Settings, token: str) -> Platform:
    return Platform(settings.model_copy(update={"token": SecretStr(token)}))


@pytest.mark.timeout(900)
def test_a_version_goes_its_way_on_servers(way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ada, bob = way.model, way.ada, way.bob
    key = SigningKey.read(create_keys(tmp_path / "keys").path)
    rules = Rules.model_validate(
        {
            "approval": {"by": ["bob"]},
            "canary": {"bake_hours": 1e-9},
            "dossier": {"signed_by": [key.public.pem]},
        }
    )
    released = releases_of(ada)
    (version,) = registry_of(ada).versions(model)
    number = version.number

    def by(who: Platform, reason: str) -> dict[str, Any]:
        return {"by": who.acting, "reason": reason}

    # The run recorded rules without an approval, and nobody checked its author.
    with pytest.raises(NotPromotable, match="differs from rules"):
        promote(released, model, number, rules=rules, **by(ada, "other rules"))
    accept_rules(releases_of(bob), model, rules, by=bob.acting, reason="two persons decide")
    (row,) = [
        one for one in ada.ledger.models.evaluations(model) if one.bundle_digest == version.bundle_digest
    ]
    with pytest.raises(NotReviewable, match="nobody checked that"):
        review(releases_of(bob), model, number, approves=True, rules=rules, **by(bob, "read the report"))
    ran = {one.name: getattr(row, one.name) for one in fields(NewEvaluation)}
    proof = {"by": ada.acting, "launched_in": "terminal"}
    ada.ledger.models.record_evaluation(NewEvaluation(**ran | proof))

    # Dossier, approval, canary, production: each rule refuses before it is met.
    assert write_dossier(ada, version, key).version == str(number)
    assert promote(released, model, number, rules=rules, **by(ada, "to the canary")).alias == "canary"
    with pytest.raises(NotPromotable, match="asks for an approval"):
        promote(released, model, number, rules=rules, **by(ada, "too early"))
    with pytest.raises(NotReviewable, match="bob"):
        review(released, model, number, approves=True, rules=rules, **by(ada, "my own"))
    review(releases_of(bob), model, number, approves=True, rules=rules, **by(bob, "read the report"))
    assert promote(released, model, number, rules=rules, **by(ada, "baked")).alias == "production"

    # A plain client of MLflow cannot move the alias. It reads what the ledger decided.
    client = open_client(ada.settings.resolved_tracking_uri.reveal())
    assert client.get_model_version_by_alias(model, "production").version == str(number)
    with pytest.raises(MlflowException, match="PERMISSION_DENIED"):
        client.delete_registered_model_alias(model, "production")

    # A second version replaces it while a server answers, and goes back.
    bundle = bundles_of(ada).open(version.bundle_digest)
    second = variant_of(bundle, bundles_of(ada), fingerprint="2" * 64)
    record_evaluation(ada.ledger, second, trained_on=row.trained_on, by=ada.acting)
    registered = register(released, second, run_id=version.run_id, links={})
    with pytest.raises(MlflowException, match="PERMISSION_DENIED"):
        client.set_registered_model_alias(model, "production", str(registered.number))
    accept_rules(releases_of(bob), model, NO_RULES, by=bob.acting, reason="one person decides again")
    watch = StageWatch(
        stage_reader_of(ada),
        bundles_of(ada),
        [Declaration(model=model)],
        seconds=86_400,
        secret=lambda: shared_secret(ada.artifacts, ada.ledger),
    )
    log = RequestLog(ada.artifacts)
    retention = LogRetention(ada.artifacts, watch, LogBounds())
    with started(watch, log, retention, Limits()) as parts, TestClient(make_app(parts)) as http:

        def answered() -> int | None:
            watch.refresh()
            served = watch.served(model)
            assert served is not None
            if served.production is None:
                return None
            said = http.post(f"/models/{model}/predict", json=example_of(served.production))
            assert said.status_code == 200, said.text
            return said.json()["version"]

        assert answered() == number
        promote(released, model, registered.number, **by(ada, "newer"))
        assert answered() == registered.number
        assert client.get_model_version_by_alias(model, "production").version == str(registered.number)
        rollback(released, model, **by(ada, "worse on the coast"))
        assert answered() == number
        demote(released, model, **by(ada, "wrong labels"))
        assert answered() is None
        with pytest.raises(MlflowException, match="PERMISSION_DENIED"):
            client.set_registered_model_alias(model, "production", str(number))
        promote(released, model, number, **by(ada, "labels were right"))
        assert answered() == number
    assert differences(released.registry, released.log, model) == []

    # What a person reads afterwards.
    for name, value in way.variables.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal(ada.settings.home)
    history = terminal("history", model).out
    for line in ("approved", "as canary, by ada (checked by token): to the canary", "rolled back", "demoted"):
        assert line in history
    assert "bob (checked by token): read" in history
    verified = terminal("ledger", "verify")
    assert verified.status == 0, verified.err
    out = tmp_path / "exported"
    assert terminal("dossier", "export", model, str(number), str(out)).status == 0
    proved = terminal("verify", str(out), "--key", str(tmp_path / "keys" / "signing.pub.pem"), "--ledger")
    assert proved.status == 0, proved.err
    assert "contains the head" in proved.out
