"""Registering is idempotent, links both ways, and what is registered loads with nothing but MLflow."""

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import mlflow.pyfunc.model  # its own import warns of itself; only ours must not
import numpy as np
import polars as pl
import pytest

from ml_assets.release.registry import NotRegistrable, Registry, VersionMissing
from ml_assets.release.runtime import ServingModel
from ml_assets.release.store import Bundle, BundleStore
from resources.mlflow_client import open_client

LINKS = {"lake_commit": "abc", "dagster_run_id": "r1", "partition": "2013-12-31"}


@pytest.fixture
def registry(tracking_uri: str) -> Registry:
    return Registry(tracking_uri)


@pytest.fixture
def run_id(tracking_uri: str) -> str:
    client = open_client(tracking_uri)
    return client.create_run(client.create_experiment("small")).info.run_id


def test_a_version_names_everything_it_came_from(registry: Registry, bundle: Bundle, run_id: str) -> None:
    version = registry.register(bundle, run_id=run_id, gate_status="blessed", links=LINKS)
    assert (version.model, version.number, str(version.semantic)) == ("small", 1, "1.0.0")
    assert version.run_id == run_id
    assert version.tags == {
        **LINKS,
        "semantic_version": "1.0.0",
        "bundle_digest": bundle.digest,
        "fingerprint": "f" * 64,
        "snapshot_digest": "5" * 64,
        "schema_digest": bundle.facts.schema_digest,
        "recipe_digest": bundle.facts.recipe_digest,
        "gate_status": "blessed",
        "stage": "staging",
    }
    run = open_client(registry.uri).get_run(run_id)
    assert run.data.tags["model_version"] == "small/1"
    assert registry.versions("small") == [version]


def test_registering_again_gives_the_same_version(
    registry: Registry, bundle: Bundle, run_id: str, tracking_uri: str
) -> None:
    client = open_client(tracking_uri)
    client.create_registered_model("small")  # what a run leaves that is killed after its first step
    first = registry.register(bundle, run_id=run_id, gate_status="undecided", links=LINKS)
    client.delete_tag(run_id, "model_version")  # as if killed after its second
    again = registry.register(bundle, run_id=run_id, gate_status="blessed", links={"dagster_run_id": "r2"})
    assert again.number == first.number
    assert again.gate_status == "blessed"
    assert again.tags["dagster_run_id"] == "r1"
    assert client.get_run(run_id).data.tags["model_version"] == "small/1"
    assert len(registry.versions("small")) == 1


def test_registering_at_once_gives_one_version(registry: Registry, bundle: Bundle, run_id: str) -> None:
    together = Barrier(4)

    def register() -> int:
        together.wait()
        return registry.register(bundle, run_id=run_id, gate_status="blessed", links=LINKS).number

    with ThreadPoolExecutor(4) as pool:
        numbers = {future.result() for future in [pool.submit(register) for _ in range(4)]}
    assert [version.number for version in registry.versions("small")] == list(numbers)


def test_versions_are_numbered_by_what_changed(
    registry: Registry, bundle: Bundle, variant: Callable[..., Bundle], run_id: str
) -> None:
    changes = [
        {},
        {"fingerprint": "1" * 64, "snapshot_digest": "6" * 64},
        {"fingerprint": "2" * 64, "configuration": {"hidden": 32, "seed": 1}},
        {"fingerprint": "3" * 64, "configuration": {"hidden": 32, "seed": 1}, "snapshot_digest": "7" * 64},
    ]
    numbers = [
        str(registry.register(variant(**one), run_id=run_id, gate_status="blessed", links={}).semantic)
        for one in changes
    ]
    assert numbers == ["1.0.0", "1.0.1", "1.1.0", "1.1.1"]


def test_a_rejected_model_gets_no_version(registry: Registry, bundle: Bundle, run_id: str) -> None:
    with pytest.raises(NotRegistrable, match="rule, slice and margin"):
        registry.register(bundle, run_id=run_id, gate_status="rejected", links=LINKS)
    assert registry.versions("small") == []


def test_a_missing_version_is_named_with_those_there_are(
    registry: Registry, bundle: Bundle, run_id: str
) -> None:
    registry.register(bundle, run_id=run_id, gate_status="blessed", links=LINKS)
    with pytest.raises(VersionMissing, match=r"small has no version 7; it has 1 \(1\.0\.0\)"):
        registry.version("small", 7)
    with pytest.raises(VersionMissing, match="none yet"):
        registry.version("other", 1)


def test_mlflow_alone_loads_and_predicts_by_alias(
    registry: Registry,
    bundle: Bundle,
    store: BundleStore,
    run_id: str,
    rows: pl.DataFrame,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version = registry.register(bundle, run_id=run_id, gate_status="blessed", links=LINKS)
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
