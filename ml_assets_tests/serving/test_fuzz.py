"""Requests that nobody would write, made from the server's own OpenAPI document: never a 500, always the promised form.

The everyday test sends a few of each kind, the nightly one many more.
"""

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
    unsupported_method,
)

from ml_assets.use.serving.app import make_app
from ml_assets.use.serving.watch import CanaryShare
from ml_assets_tests.serving.conftest import Serve

_CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]


def _fuzz(serve: Serve, examples: int) -> None:
    """Send requests that fit the document, and requests that do not, to each of its operations."""
    serving = serve(canary=CanaryShare(share=0.5, by=("carrier",)))
    serving.promote(2, "canary")
    document = schemathesis.openapi.from_asgi("/openapi.json", make_app(serving.parts))
    sent = 0
    for found in document.get_all_operations():
        operation = found.ok()
        is_predict = operation.method.upper() == "POST"
        for mode in GenerationMode if is_predict else (GenerationMode.POSITIVE,):

            @settings(
                max_examples=examples if is_predict else 1,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case: schemathesis.Case) -> None:
                nonlocal sent
                sent += 1
                case.call_and_validate(checks=_CHECKS)

            check()
    assert sent > examples


def test_no_fuzzed_request_gets_a_500(serve: Serve) -> None:
    _fuzz(serve, 5)


@pytest.mark.nightly
def test_no_fuzzed_request_of_a_thousand_gets_a_500(serve: Serve) -> None:
    _fuzz(serve, 500)
