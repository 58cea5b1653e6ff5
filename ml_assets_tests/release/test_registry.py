"""Registering is idempotent, links both ways, and what is registered loads with nothing but MLflow."""

import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import mlflow.pyfunc.model  # its own import warns of itself; only ours must not
import numpy as np
import polars as pl
import pytest

from ml_assets.cli import doctor
from ml_assets.cli.doctor import NotWell
from ml_assets.context.project import Project
from ml_assets.model.release.bundle import BundleContents, build_bundle
from ml_assets.model.release.bundle_store import Bundle, BundleStore, seal
from ml_assets.model.release.promotion import register as register_version
from ml_assets.model.release.registry import RegisteredVersion, Registry, VersionMissing
from ml_assets.model.release.releases import NotRegistrable, Releases
from ml_assets.model.release.runtime import LISTING, ServingModel
from ml_assets_tests.release.conftest import Evaluate
from resources.artifacts import FolderArtifacts
from resources.ledger import Ledger
from resources.platform import Platform
from resources.tracking.mlflow_client import open_client

LINKS = {"lake_commit": "abc", "dagster_run_id": "r1", "partition": "2013-12-31"}


@pytest.fixture
def run_id(tracking_uri: str) -> str:
    client = open_client(tracking_uri)
    return client.create_run(client.create_experiment("small")).info.run_id


@pytest.fixture
def register(releases: Releases, evaluate: Evaluate, run_id: str) -> Callable[[Bundle], RegisteredVersion]:
    """Evaluate a bundle as blessed and register it."""

    def blessed(bundle: Bundle) -> RegisteredVersion:
        evaluate(bundle)
        return register_version(releases, bundle, run_id=run_id, links=LINKS)

    return blessed


def test_a_version_names_everything_it_came_from(
    releases: Releases, registry: Registry, evaluate: Evaluate, bundle: Bundle, run_id: str
) -> None:
    evaluation = evaluate(bundle)
    version = register_version(releases, bundle, run_id=run_id, links=LINKS)
    assert (version.model, version.number, version.semantic) == ("small", 1, "1.0.0")
    assert (version.run_id, version.bundle_digest) == (run_id, bundle.digest)
    assert version.tags == {
        **LINKS,
        "semantic_version": "1.0.0",
        "bundle_digest": bundle.digest,
        "fingerprint": "f" * 64,
        "snapshot_digest": "5" * 64,
        "schema_digest": bundle.facts.schema_digest,
        "recipe_digest": bundle.facts.recipe_digest,
        "gate_status": "blessed",
        "evaluation": evaluation.name,
        "report": evaluation.report,
        "stage": "staging",
    }
    run = open_client(registry.uri).get_run(run_id)
    assert run.data.tags["model_version"] == "small/1"
    assert registry.versions("small") == [version]


def test_registering_again_gives_the_version_with_its_newest_evaluation(
    releases: Releases, registry: Registry, evaluate: Evaluate, bundle: Bundle, run_id: str, tracking_uri: str
) -> None:
    client = open_client(tracking_uri)
    client.create_registered_model("small")  # what a run leaves that is killed after its first step
    evaluate(bundle, "undecided")
    first = register_version(releases, bundle, run_id=run_id, links=LINKS)
    client.delete_tag(run_id, "model_version")  # as if killed after its second
    evaluate(bundle, "blessed")
    again = register_version(releases, bundle, run_id=run_id, links={"dagster_run_id": "r2"})
    assert again.number == first.number
    assert (first.tags["gate_status"], again.tags["gate_status"]) == ("undecided", "blessed")
    assert again.tags["dagster_run_id"] == "r1"
    assert client.get_run(run_id).data.tags["model_version"] == "small/1"
    assert len(registry.versions("small")) == 1


def test_registering_at_once_gives_one_version(
    registry: Registry, bundle: Bundle, register: Callable[[Bundle], RegisteredVersion]
) -> None:
    together = Barrier(4)

    def register_together() -> int:
        together.wait()
        return register(bundle).number

    with ThreadPoolExecutor(4) as pool:
        numbers = {future.result() for future in [pool.submit(register_together) for _ in range(4)]}
    assert [version.number for version in registry.versions("small")] == list(numbers)


def test_four_bundles_registered_at_once_get_four_semantic_versions(
    registry: Registry,
    bundle: Bundle,
    variant: Callable[..., Bundle],
    register: Callable[[Bundle], RegisteredVersion],
) -> None:
    """Registering four at once used to give 1.0.1 three times."""
    register(bundle)
    bundles = [variant(fingerprint=str(number) * 64, snapshot_digest=str(number) * 64) for number in range(4)]
    together = Barrier(4)

    def register_together(one: Bundle) -> str:
        together.wait()
        return register(one).semantic

    with ThreadPoolExecutor(4) as pool:
        named = [future.result() for future in [pool.submit(register_together, one) for one in bundles]]
    assert sorted(named) == ["1.0.1", "1.0.2", "1.0.3", "1.0.4"]
    assert sorted(version.semantic for version in registry.versions("small")) == ["1.0.0", *sorted(named)]


def test_versions_are_numbered_by_what_changed(
    bundle: Bundle, variant: Callable[..., Bundle], register: Callable[[Bundle], RegisteredVersion]
) -> None:
    changes = [
        {},
        {"fingerprint": "1" * 64, "snapshot_digest": "6" * 64},
        {"fingerprint": "2" * 64, "configuration": {"hidden": 32, "seed": 1}},
        {"fingerprint": "3" * 64, "configuration": {"hidden": 32, "seed": 1}, "snapshot_digest": "7" * 64},
    ]
    numbers = [register(variant(**one)).semantic for one in changes]
    assert numbers == ["1.0.0", "1.0.1", "1.1.0", "1.1.1"]


def test_a_rejected_or_unevaluated_model_gets_no_version(
    releases: Releases, registry: Registry, evaluate: Evaluate, bundle: Bundle, run_id: str
) -> None:
    with pytest.raises(NotRegistrable, match="small ffffffffffff was never"):
        register_version(releases, bundle, run_id=run_id, links=LINKS)
    evaluate(bundle, "rejected")
    with pytest.raises(NotRegistrable, match="names the failed rules"):
        register_version(releases, bundle, run_id=run_id, links=LINKS)
    assert registry.versions("small") == []


def test_a_missing_version_is_named_with_those_there_are(
    registry: Registry, bundle: Bundle, register: Callable[[Bundle], RegisteredVersion]
) -> None:
    register(bundle)
    with pytest.raises(VersionMissing, match=r"no version 7; .* 1 \(1\.0\.0\)"):
        registry.version("small", 7)
    with pytest.raises(VersionMissing, match="none yet"):
        registry.version("other", 1)


def test_mlflow_refuses_a_replaced_bundle_with_a_new_listing(
    registry: Registry,
    contents: BundleContents,
    register: Callable[[Bundle], RegisteredVersion],
    tmp_path: Path,
) -> None:
    """The replaced runtime answers otherwise and skips its own checks, and the listing has its digest."""
    ours = build_bundle(contents, BundleStore(FolderArtifacts(tmp_path / "artifacts")))
    client = open_client(registry.uri)
    client.create_registered_model("replaced")
    client.create_model_version("replaced", ours.address)
    runtime = ours.folder / "runtime.py"
    for path in (runtime, ours.folder / LISTING):
        path.chmod(0o644)
    with runtime.open("a") as code:
        code.write("ServingModel.replay_golden_rows = lambda *given: None\n")
        code.write("ServingModel.predict = lambda self, rows: np.full(rows.height, 0.5)\n")
    seal(ours.folder)
    copied = tmp_path / "copied"
    shutil.copytree(ours.folder, copied)
    (copied / "registered_model_meta").write_text("model_name: replaced\nmodel_version: '1'\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", registry.uri)
        patch.setenv("MLFLOW_REGISTRY_URI", registry.uri)
        for address in ("models:/replaced/1", str(ours.folder), str(copied)):
            with pytest.raises(Exception, match="its files were replaced") as refused:
                mlflow.pyfunc.load_model(address)
            assert type(refused.value).__name__ == "BundleReplaced"


def test_mlflow_alone_loads_and_predicts_by_alias(
    registry: Registry,
    bundle: Bundle,
    store: BundleStore,
    register: Callable[[Bundle], RegisteredVersion],
    rows: pl.DataFrame,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version = register(bundle)
    registry.set_alias("small", "production", version.number)
    assert registry.aliased("small", "production") == 1
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.uri)
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", registry.uri)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        loaded = mlflow.pyfunc.load_model("models:/small@production")
    expected = ServingModel.load(bundle.folder).predict(rows)
    frame = rows.to_pandas()
    assert frame["gate"].dtype.kind == "f"  # pandas made floats of integers with nulls
    np.testing.assert_array_equal(loaded.predict(frame), expected)
    frame["carrier"] = frame["carrier"].astype("category")
    frame["hour"] = frame["hour"].astype(object).where(frame["hour"].notna(), None)
    frame["gate"] = frame["gate"].astype("Int64")
    np.testing.assert_array_equal(loaded.predict(frame), expected)
    with pytest.raises(ValueError, match=r"columns \['delay'\] are missing"):
        loaded.predict(frame.drop(columns="delay"))
    assert loaded.metadata.metadata["inputs"] == {column.name: column.dtype for column in bundle.facts.inputs}
    assert store.open(bundle.digest).facts == bundle.facts  # MLflow leaves a file beside the bundle's


def test_doctor_names_a_ledger_that_lacks_what_mlflow_has(platform: Platform, tmp_path: Path) -> None:
    """A command that begins without the ledger's file makes an empty ledger, with which all else agrees."""
    project = Project(platform.settings)
    project.__dict__["platform"] = platform
    assert doctor.registry(project) == "aliases and tags of 1 models as in the ledger"
    platform.__dict__["ledger"] = Ledger(f"sqlite:///{tmp_path}/empty.db")
    with pytest.raises(NotWell, match="versions of small, and"):
        doctor.registry(project)
