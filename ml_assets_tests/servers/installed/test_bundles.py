"""A bundle made on one machine is found, verified and served on others, by address and by MLflow's own client."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from ml_assets.model.release.bundle_store import FILES, BundleMissing
from ml_assets.model.release.promotion import promote
from ml_assets.model.release.releases import bundles_of, registry_of, releases_of
from ml_assets.model.release.runtime import GOLDEN, GOLDEN_OUTPUT, LISTING
from ml_assets_tests.servers.installed.conftest import Installed
from ml_assets_tests.servers.running_servers import RunningServers
from resources.ledger import Person
from resources.platform import Platform
from resources.settings import Settings
from resources.tracking.mlflow_client import open_client

_STRANGER = """
import json, sys
import mlflow, polars as pl
model = mlflow.pyfunc.load_model(sys.argv[1])
rows = pl.read_parquet(sys.argv[2]).to_pandas()
print(json.dumps([float(value) for value in model.predict(rows)]))
"""


@pytest.fixture
def digest(installed: Installed) -> str:
    return installed.facts["evaluation"]["bundle"]


def test_source_of_a_version_is_where_its_bundle_lies(installed: Installed, digest: str) -> None:
    platform, number = installed.installation.platform, installed.facts["registered_model"]["version"]
    version = open_client(installed.settings.resolved_tracking_uri.reveal()).get_model_version(
        installed.model, str(number)
    )
    assert version.source == platform.artifacts.address(f"bundles/{digest}")
    assert version.source.startswith("s3://")
    assert platform.artifacts.files(f"bundles/{digest}").keys() == set(FILES)


def test_stranger_loads_what_is_in_production(
    installed: Installed, digest: str, tmp_path: Path, servers: RunningServers
) -> None:
    """Another process with nothing of ours but the addresses and the packages."""
    number = installed.facts["registered_model"]["version"]
    promote(
        releases_of(installed.installation.platform),
        installed.model,
        number,
        by=Person.unchecked("ada"),
        reason="first",
    )
    golden = installed.installation.platform.artifacts.pull(f"bundles/{digest}", [GOLDEN]) / GOLDEN
    expected = pl.read_parquet(golden)[GOLDEN_OUTPUT].to_list()
    environment = {
        **servers.storage_env,
        "MLFLOW_TRACKING_URI": installed.settings.resolved_tracking_uri.reveal(),
        "MLFLOW_S3_ENDPOINT_URL": str(installed.settings.s3_endpoint_url),
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
    }
    program = [sys.executable, "-c", _STRANGER, f"models:/{installed.model}@production", str(golden)]
    done = subprocess.run(
        program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx(expected, abs=1e-6)


def test_another_machine_gets_the_bundle_and_mends_a_damaged_copy(
    installed: Installed, digest: str, elsewhere: Settings
) -> None:
    store = bundles_of(Platform(elsewhere))
    bundle = store.open(digest)
    assert bundle.facts.lineage.model == installed.model
    assert {path.name for path in bundle.folder.iterdir()} == set(FILES)
    (bundle.folder / GOLDEN).write_bytes(b"something else")
    assert store.open(digest).digest == digest
    (bundle.folder / "MLmodel").unlink()
    assert store.open(digest).facts == bundle.facts
    with pytest.raises(BundleMissing, match=r"under s3://"):
        store.open("0" * 64)


def test_a_bundle_whose_maker_died_before_the_push_is_pushed_next_time(
    installed: Installed, digest: str
) -> None:
    platform = installed.installation.platform
    platform.artifacts.remove(f"bundles/{digest}", [LISTING, GOLDEN])
    installed.train_again()
    assert platform.artifacts.files(f"bundles/{digest}").keys() == set(FILES)


def test_versions_and_promotions_are_seen_from_another_machine(
    installed: Installed, elsewhere: Settings
) -> None:
    (version,) = registry_of(Platform(elsewhere)).versions(installed.model)
    assert version.number == installed.facts["registered_model"]["version"]
