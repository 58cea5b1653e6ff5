"""The typed client: generated from the document that this API has, and calling a real one."""

import importlib
import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest

from deployment.client import CLIENT, DOCUMENT, document_text
from ml_assets_tests.api.conftest import ServedApi
from ml_assets_tests.api.test_launches import TRAINING, run_of

Load = Callable[[str], Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Import a module of the client, which is no package of this project."""
    monkeypatch.syspath_prepend(str(CLIENT))
    return lambda name: importlib.import_module(f"ml_assets_client{name}")


def test_the_client_was_made_from_the_document_of_this_api() -> None:
    """If not: `deployment/client.sh` makes it anew."""
    assert (CLIENT / DOCUMENT).read_text() == document_text()


def test_the_client_has_a_function_for_each_operation(load: Load) -> None:
    document = json.loads((CLIENT / DOCUMENT).read_text())
    found = [
        (operation["operationId"], method, path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    assert len(found) > 20
    for name, method, path in found:
        source = inspect.getsource(load(f".api.default.{name}"))
        assert f'"method": "{method}"' in source, name
        assert f'"url": "{path}"' in source, (name, path)
    modules = {one.stem for one in (CLIENT / "ml_assets_client" / "api" / "default").glob("[!_]*.py")}
    assert modules == {name for name, *_ in found}


def test_the_client_launches_and_reads(api: ServedApi, load: Load) -> None:
    client = load("").AuthenticatedClient(base_url=api.address, token=api.tokens["operator"])
    models = load(".models")
    answer = load(".api.default.post_training_runs").sync_detailed(
        client=client, body=models.TrainingRequest(**TRAINING), idempotency_key="client"
    )
    run = answer.parsed
    assert (answer.status_code, type(run)) == (202, models.RunDocument)
    assert run_of(api, run.id).tags["dagster/partition"] == TRAINING["partition"]
    row = api.platform.ledger.launches.of(run.id)
    assert row is not None
    assert row.by.name == "operator"
    again = load(".api.default.get_training_runs_by_id").sync(run.id, client=client)
    assert again == run
    page = load(".api.default.get_models_versions").sync("store_demand", client=client, limit=1)
    assert [one.version for one in page.items] == [1]
    assert page.next_


def test_the_client_returns_a_refusal_as_a_problem(api: ServedApi, load: Load) -> None:
    client = load("").AuthenticatedClient(base_url=api.address, token=api.tokens["viewer"])
    models = load(".models")
    answer = load(".api.default.post_training_runs").sync_detailed(
        client=client, body=models.TrainingRequest(**TRAINING)
    )
    assert (answer.status_code, type(answer.parsed)) == (403, models.ProblemDocument)
    assert answer.parsed.code == "role_needed"
