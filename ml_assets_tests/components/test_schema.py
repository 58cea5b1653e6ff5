"""The JSON schema that Dagster makes of the components, by which editors complete and check a `defs.yaml`."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ml_assets.components import Dataset, FeatureTable, TrainingPipeline
from ml_assets.components.base import SpecComponent

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The schema of this project."""
    file = tmp_path_factory.mktemp("schema") / "schema.json"
    command = [
        Path(sys.executable).parent / "dg",
        "utils",
        "generate-component-schema",
        "--output-path",
        file,
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return json.loads(file.read_text())


def _documents() -> Iterator[Any]:
    for file in (ROOT / "ml_assets" / "defs").rglob("defs.yaml"):
        yield from json.loads(
            json.dumps(list(yaml.safe_load_all(file.read_text())), default=str)
        )  # dates as text


@pytest.mark.parametrize("component", [Dataset, FeatureTable, TrainingPipeline])
def test_every_key_has_a_description(component: type[SpecComponent]) -> None:
    schema = component.spec_type.model_json_schema()
    sections = {component.__name__: schema, **schema["$defs"]}
    silent = [
        f"{name}.{key}"
        for name, section in sections.items()
        for key, found in section.get("properties", {}).items()
        if not found.get("description")
    ]
    assert silent == []


def test_the_projects_files_keep_the_schema_and_a_typo_does_not(schema: dict[str, Any]) -> None:
    import jsonschema  # takes seconds, which each test process would spend while it collects

    documents = list(_documents())
    assert len(documents) > 8
    for document in documents:
        name = document["type"].rpartition(".")[2]
        validator = jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]})
        assert [error.message for error in validator.iter_errors(document)] == []
        document["attributes"]["descripton"] = "misspelt"
        (error,) = validator.iter_errors(document)
        assert "'descripton' was unexpected" in error.message
