"""Requests that nobody would write, made from the API's own OpenAPI document: never a 500, always the promised form.

The everyday test sends a few of each kind, the nightly one many more.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from ml_assets.extras.api import callers
from ml_assets_tests.api.conftest import ServedApi, running_api
from resources.settings import Settings

_CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def own_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    """An API of these tests alone, since their requests decide about versions. Its callers may ask as often as they
    like."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(callers, "OF_ACCOUNT", (1e9, 10**9))
        patch.setattr(callers, "OF_ADDRESS", (1e9, 10**9))
        with running_api(Settings(home=tmp_path_factory.mktemp("fuzzed"))) as api:
            yield api


def _fuzz(api: ServedApi, examples: int) -> None:
    """Send requests that fit the document, and requests that do not, to each operation, as an administrator."""
    document = schemathesis.openapi.from_url(f"{api.address}/openapi.json")
    statuses: dict[str, set[int]] = {}
    for found in document.get_all_operations():
        operation = found.ok()
        for mode in (GenerationMode.POSITIVE,) if operation.path == "/health" else GenerationMode:
            statuses.setdefault(operation.label, set()).update(_statuses(api, operation, mode, examples))
    assert len(statuses) > 15
    assert all(one < 500 for some in statuses.values() for one in some), statuses
    assert api.rows() > 0  # the chain is whole


def _statuses(api: ServedApi, operation: Any, mode: GenerationMode, examples: int) -> set[int]:
    proof = {"authorization": f"Bearer {api.tokens['admin']}"}
    seen: set[int] = set()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        answer = case.call(headers=proof, timeout=60)
        seen.add(answer.status_code)
        case.validate_response(answer, checks=_CHECKS)

    check()
    return seen


def test_no_fuzzed_request_of_the_api_gets_a_500(own_api: ServedApi) -> None:
    _fuzz(own_api, 6)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_no_fuzzed_request_of_thousands_to_the_api_gets_a_500(own_api: ServedApi) -> None:
    _fuzz(own_api, 250)
