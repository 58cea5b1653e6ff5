"""Proof of a version that was really trained: its launches, its dossier, and its reproduction with other workers."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.extras.governance.dossier.documents import BILL, PROVENANCE
from ml_assets.extras.governance.dossier.stored import export
from ml_assets.extras.reproduction.reproduce import NotReproducible, other_environment, reproduce
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.registry import RegisteredVersion
from ml_assets.model.release.releases import bundles_of, registry_of
from ml_assets.model.release.signing_keys import create_keys
from ml_assets.model.steps.train import LaunchUnknown, read_launches
from ml_assets_tests.components.installation import Installation, failure_of, readings_components
from ml_assets_tests.components.model_run import REGISTERED, ModelRun, train
from ml_assets_tests.components.readings_pipeline import MODEL, PIPELINE, WINDOW, days
from ml_assets_tests.dossier.in_toto import require_in_toto
from resources.ledger import EvaluationRow

(DAY,) = days(1, start=WINDOW)
BITWISE = {"training": PIPELINE["training"] | {"determinism": "bitwise", "epochs": 2}}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the keys that sign dossiers."""
    return create_keys(tmp_path_factory.mktemp("signing") / "keys").path.parent


@pytest.fixture(scope="module")
def installation(shared_installation: Installation, keys: Path) -> Installation:
    """An installation with ML_ASSETS_SIGNING_KEY."""
    signing = shared_installation.settings.model_copy(update={"signing_key": keys / "signing.pem"})
    installation = Installation(signing.home, readings_components(pipeline=BITWISE), signing)
    return installation.with_tables(1)


@pytest.fixture(scope="module")
def made(installation: Installation) -> ModelRun:
    """Version 1, trained by two workers."""
    return train(installation, DAY)


@pytest.fixture(scope="module")
def version(installation: Installation, made: ModelRun) -> RegisteredVersion:
    return registry_of(installation.platform).version(MODEL, 1)


@pytest.fixture
def spec() -> TrainingPipelineSpec:
    *_, pipeline = readings_components(pipeline=BITWISE)
    return pipeline.spec


@pytest.fixture
def row(installation: Installation, version: RegisteredVersion) -> EvaluationRow:
    (row,) = installation.platform.ledger.models.evaluations(MODEL)
    assert row.launched_in == "dagster", "no person launched it in a terminal"
    return row


@pytest.fixture
def bundle(installation: Installation, version: RegisteredVersion) -> Bundle:
    return bundles_of(installation.platform).open(version.bundle_digest)


def test_another_number_of_workers_reproduces_the_bits(
    installation: Installation, version: RegisteredVersion, spec: TrainingPipelineSpec
) -> None:
    """Nothing of the installation changes."""
    before = {path for path in installation.settings.home.rglob("*") if path.is_file()}
    head = installation.platform.ledger.models.verify()
    found = reproduce(spec, installation.platform, version, workers=1, on_log=lambda _: None)
    assert (found.level, found.expected, found.workers) == ("weights", "weights", 1)
    told = {one.what: one for one in found.compared}
    assert all(one.recorded == one.again for name, one in told.items() if name != "predictions")
    assert told["predictions"].again == "equal"
    assert {"snapshot", "weights", "bundle", "predictions", "holdout rmse"} <= told.keys()
    after = {path for path in installation.settings.home.rglob("*") if path.is_file()}
    assert not {path for path in after - before if "/cache/" not in str(path)}
    assert installation.platform.ledger.models.verify() == head


def test_other_rules_for_the_training_set_are_named(
    installation: Installation, version: RegisteredVersion
) -> None:
    numeric = PIPELINE["features"] | {"numeric": ["load"]}
    *_, other = readings_components(pipeline={**BITWISE, "features": numeric})
    with pytest.raises(
        NotReproducible, match=r"the training set of throughput 1 is another one now: snapshot"
    ):
        reproduce(other.spec, installation.platform, version, on_log=lambda _: None)


def test_another_environment_is_refused_by_name(
    installation: Installation,
    version: RegisteredVersion,
    bundle: Bundle,
    row: EvaluationRow,
) -> None:
    platform, fingerprint = installation.platform, bundle.facts.lineage.fingerprint
    assert list(other_environment(platform, bundle, row)) == []
    (launch,) = read_launches(platform, MODEL, fingerprint, row.launches)
    other = replace(launch, commit="c" * 40, lock="d" * 64, packages=launch.packages | {"torch": "1.0"})
    content = json.dumps(asdict(other)).encode()
    name = f"launches/{MODEL}/{fingerprint[:16]}"
    with platform.artifacts.create(name, "9.json") as stream:
        stream.write(content)
    named = replace(row, launches=(hashlib.sha256(content).hexdigest(),))
    commit, lock, package = other_environment(platform, bundle, named)
    platform.artifacts.remove(name, ["9.json"])
    assert commit.startswith("its code was commit cccccccccccc, here is ")
    assert lock.startswith("its lock was dddddddddddd, here is ")
    assert package.startswith("torch was 1.0, here is ")
    assert list(other_environment(platform, bundle, replace(row, launches=()))) == [
        "no launch of it is recorded"
    ]


def test_a_second_click_leaves_the_record_of_the_first(
    installation: Installation, made: ModelRun, row: EvaluationRow, bundle: Bundle
) -> None:
    """It adds no launch, and changes no byte of report, result, record and dossier."""
    folders = [
        installation.settings.artifacts_folder / name
        for name in ("launches", "reports", "bundles", "dossiers")
    ]
    dossiers = installation.platform.ledger.models.dossiers(MODEL)
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()] + [
        made.folder / "result.json"
    ]
    before = {path: path.read_bytes() for path in files}
    train(installation, DAY)
    assert {path: path.read_bytes() for path in files} == before
    # A promotion needs the dossier of its own evaluation.
    log = installation.platform.ledger.models
    assert log.dossiers(MODEL)[: len(dossiers)] == dossiers
    evaluated = dict.fromkeys(one.evaluation_digest for one in log.evaluations(MODEL))
    assert [one.evaluation_digest for one in log.dossiers(MODEL)] == list(evaluated)
    newest = installation.platform.ledger.models.newest_evaluation(MODEL, bundle.digest)
    assert newest is not None
    assert newest.launches == row.launches
    (launch,) = read_launches(installation.platform, MODEL, bundle.facts.lineage.fingerprint, row.launches)
    assert (launch.run_id, launch.author, launch.workers) == (made.result.run_id, "ada", 2)
    assert launch.packages["torch"]
    with pytest.raises(LaunchUnknown, match=r"is gone from .* or was altered"):
        read_launches(installation.platform, MODEL, bundle.facts.lineage.fingerprint, ["0" * 64])


def test_public_tools_and_a_stranger_accept_the_dossier(
    installation: Installation, made: ModelRun, version: RegisteredVersion, keys: Path, tmp_path: Path
) -> None:
    """The register step wrote it, and its page names it."""
    page = made.facts[REGISTERED]
    log = installation.platform.ledger.models
    row, *_ = log.dossiers(MODEL)
    assert (page["dossier"], page["dossier_export"]) == (
        row.dossier_digest,
        f"ml-assets dossier export {MODEL} 1 FOLDER",
    )
    assert (Path(page["dossier_files"].removeprefix("file://")) / "model.sig").is_file()
    folder = tmp_path / "out"
    export(bundles_of(installation.platform), row, folder)
    public = keys / "signing.pub.pem"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "nobody")}
    for command in (
        ["-m", "model_signing", "verify", "key", str(folder), "--signature", str(folder / "model.sig"),
         "--public_key", str(public)],
        ["-c", "from ml_assets.cli import main; main()", "verify", str(folder), "--key", str(public)],
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert f"data        commit {made.installation.main.commit_id}" in done.stdout
    assert not (tmp_path / "nobody").exists()
    bill = (folder / BILL).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    assert "pkg:pypi/polars@" in bill
    require_in_toto((folder / PROVENANCE).read_text())
    assert row.evaluation_digest == log.evaluations(MODEL)[0].evaluation_digest


def test_a_key_that_cannot_sign_is_refused_before_the_training(installation: Installation) -> None:
    lost = installation.settings.model_copy(update={"signing_key": installation.settings.home / "lost.pem"})
    said = failure_of(Installation(lost.home, readings_components(pipeline=BITWISE), lost).train(DAY))
    assert said.startswith(
        f"{MODEL} would fail after its training, when its dossier is signed: the private key"
    )
    assert "check ML_ASSETS_SIGNING_KEY" in said
