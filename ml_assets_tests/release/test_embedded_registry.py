"""An embedded MLflow's file: what is read and written there is what MLflow's own client sees."""

from pathlib import Path

import pytest

from ml_assets.model.release.embedded_registry import EmbeddedRegistry
from resources.tracking.mlflow_client import TrackerRefused, TrackerUnavailable, open_client


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of an MLflow with two versions of one model, one of another, and a deleted one."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    client = open_client(f"sqlite:///{path}")
    for model in ("small", "other"):
        client.create_registered_model(model)
        client.create_model_version(model, f"/bundles/{model}", tags={"stage": "staging", "why": "it's ok"})
    for _ in range(2):
        client.create_model_version("small", "/bundles/again")
    client.delete_model_version("small", "2")
    client.set_registered_model_alias("small", "production", "1")
    return path


def test_versions_tags_and_aliases_are_those_of_the_client(file: Path) -> None:
    client, registry = open_client(f"sqlite:///{file}"), EmbeddedRegistry(file)
    for model in ("small", "other", "nobody"):
        theirs = client.search_model_versions(f"name = '{model}'")
        assert [
            (one.model, one.number, one.source, one.run_id, one.tags) for one in registry.versions(model)
        ] == sorted(
            (one.name, int(one.version), one.source, one.run_id or "", dict(one.tags)) for one in theirs
        )
    assert [(one.model, one.number) for one in registry.versions()] == [
        ("other", 1),
        ("small", 1),
        ("small", 3),
    ]
    assert registry.alias("small", "production") == 1
    assert registry.alias("other", "production") is None


def test_the_client_sees_what_was_written(file: Path) -> None:
    client, registry = open_client(f"sqlite:///{file}"), EmbeddedRegistry(file)
    for number in (3, 1):
        registry.set_alias("small", "canary", number)
        assert client.get_model_version_by_alias("small", "canary").version == number
    registry.set_alias("small", "canary", None)
    assert client.get_registered_model("small").aliases == {"production": 1}
    for value in ("first", "ünï'code"):
        registry.tag("small", 3, "gate", value)
        assert client.get_model_version("small", "3").tags == {"gate": value}


@pytest.mark.parametrize("number", [2, 4])
def test_a_version_that_is_gone_is_refused(file: Path, number: int) -> None:
    registry = EmbeddedRegistry(file)
    with pytest.raises(TrackerRefused, match=f"no version {number} of small"):
        registry.tag("small", number, "gate", "blessed")
    with pytest.raises(TrackerRefused):
        registry.set_alias("small", "production", number)
    assert registry.alias("small", "production") == 1


def test_a_file_that_is_missing_is_empty_and_another_file_is_named(tmp_path: Path) -> None:
    missing = EmbeddedRegistry(tmp_path / "none" / "mlflow.db")
    assert (list(missing.versions()), missing.alias("small", "production")) == ([], None)
    assert not missing.path.parent.exists()
    (tmp_path / "text").write_text("text, and no database")
    for path in (tmp_path / "text", tmp_path / "text" / "mlflow.db"):
        with pytest.raises(TrackerUnavailable, match="text"):
            EmbeddedRegistry(path).versions()
