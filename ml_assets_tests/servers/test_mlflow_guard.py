"""MLflow's server of the testbed refuses what contradicts the ledger on PostgreSQL."""

import hashlib
from pathlib import Path

import httpx
import pytest
from mlflow.exceptions import MlflowException

from ml_assets.extras.governance.mlflow_guard import OWN_PATH, guarded_head
from ml_assets_tests.servers.running_servers import RunningServers
from resources.ledger import Ledger, NewEvaluation, Person, TrainedOn
from resources.tracking.mlflow_client import open_client


def test_the_alias_follows_the_ledger_of_the_servers(servers: RunningServers, tmp_path: Path) -> None:
    ledger = Ledger(servers.env["ML_ASSETS_LEDGER_URL"])
    model = f"guarded_{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]}"
    digests = [hashlib.sha256(f"{model} {number}".encode()).hexdigest() for number in (1, 2)]
    client = open_client(servers.env["ML_ASSETS_TRACKING_URI"])
    client.create_registered_model(model)
    for digest in digests:
        ledger.models.record_evaluation(
            NewEvaluation(
                model=model,
                partition="2013-12-31",
                bundle_digest=digest,
                evaluation_digest=digest[::-1],
                champion_digest=None,
                status="blessed",
                summary="Blessed: as the test wants it.",
                rules=(),
                by=Person.unchecked("ada"),
                report="s3://artifacts/report.html",
                run_id="a-run",
                trained_on=TrainedOn(commit="0" * 40, table="t", first="1", last="1", partitions=1),
            )
        )
        client.create_model_version(model, f"{servers.env['ML_ASSETS_ARTIFACTS_URL']}/bundles/{digest}")
    ledger.models.promote(
        model, "1", "production", by=Person.unchecked("ada"), reason="first",
        bundle_digest=digests[0], evaluation_digest=digests[0][::-1],
    )  # fmt: skip
    client.set_registered_model_alias(model, "production", "1")
    head = guarded_head(servers.env["ML_ASSETS_TRACKING_URI"])
    assert head is not None
    ledger.models.verify(head)
    for alias, version in (("production", "2"), ("canary", "1")):
        with pytest.raises(MlflowException, match=r"PERMISSION_DENIED.*by the ledger"):
            client.set_registered_model_alias(model, alias, version)
    with pytest.raises(MlflowException, match="role production by the"):
        client.delete_model_version(model, "1")
    assert client.get_model_version_by_alias(model, "production").version == "1"
    assert client.get_registered_model(model).aliases == {"production": "1"}
    counts = httpx.get(f"{servers.env['ML_ASSETS_TRACKING_URI']}{OWN_PATH}/metrics", timeout=60).text
    labels = 'method="POST",path="/api/2.0/mlflow/registered-models/alias"'
    for status in ("200", "403"):
        assert f'ml_assets_guard_requests_total{{{labels},status="{status}"}}' in counts
