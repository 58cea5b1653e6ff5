"""Stages of versions over HTTP: the rules of the commands, and their rows in the ledger."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from ml_assets_tests.api.conftest import ServedApi
from ml_assets_tests.api.test_frame import problem
from ml_assets_tests.release.conftest import example_rows
from ml_assets_tests.release.recorded_evaluations import record_evaluation
from ml_assets_tests.serving.released import MODEL, register
from resources.ledger import Person

ROWS = example_rows()


def put(
    api: ServedApi, name: str, version: int, stage: str, reason: str = "as the test wants it"
) -> httpx.Response:
    return api.ask(
        name, "PUT", f"/models/{MODEL}/versions/{version}/stage", {"stage": stage, "reason": reason}
    )


FINGERPRINTS = iter("abcdef345679")
"""Each makes another bundle; the fixtures and other modules of tests use 1, 2 and 8."""


@pytest.fixture
def version(api: ServedApi) -> int:
    """Return the number of a new version, which is blessed."""
    bundle = register(api.platform, ROWS, next(FINGERPRINTS))
    log, accounts = api.platform.ledger.models, api.platform.ledger.accounts
    first = next(one for one in log.evaluations(MODEL) if one.bundle_digest == bundle.digest)
    # Nobody may approve an evaluation whose author nobody checked.
    author = Person.proved(accounts.of_token(api.tokens["operator"]), "token")
    record_evaluation(
        api.platform.ledger, bundle, trained_on=first.trained_on, gates=first.gates, by=author, told="again"
    )
    return max(one.number for one in api.context.project.releases.registry.versions(MODEL))


def test_an_approved_version_is_promoted_as_by_the_command(api: ServedApi, version: int) -> None:
    approved = put(api, "admin", version, "approved", "read the report").json()
    assert (approved["stage"], approved["changed"], approved["by"]) == ("staging", True, "admin")
    assert put(api, "admin", version, "approved", "again").json()["changed"] is False
    told = put(api, "approver", version, "production", "better on the holdout").json()
    assert (told["stage"], told["changed"], told["by"]) == ("canary", True, "approver")
    held = api.platform.ledger.models.in_production(MODEL, "canary")
    assert held is not None
    assert (held.version, held.by.name, held.by.checked_by) == (str(version), "approver", "token")
    assert held.reason == "better on the holdout"
    before = api.rows()
    too_early = put(api, "approver", version, "production")
    assert (problem(too_early), too_early.json()["ground"]) == ((409, "not_promotable"), "canary")
    assert api.rows() == before
    assert api.ask("viewer", "GET", f"/models/{MODEL}/versions/{version}").json()["stage"] == "canary"
    models = {one["name"]: one for one in api.ask("viewer", "GET", "/models").json()["items"]}
    assert (models[MODEL]["canary"], models[MODEL]["production"]) == (str(version), None)


def test_an_archived_version_is_never_promoted(api: ServedApi, version: int) -> None:
    told = put(api, "approver", version, "archived").json()
    assert (told["stage"], told["changed"], told["by"]) == ("archived", True, "approver")
    before = api.rows()
    again = put(api, "admin", version, "archived").json()
    assert (again["changed"], again["by"]) == (False, "approver")
    refused = put(api, "approver", version, "production")
    assert problem(refused) == (409, "not_promotable")
    assert refused.json()["ground"] == "archived"
    assert api.rows() == before


def test_the_archived_canary_leaves_its_role(api: ServedApi, version: int) -> None:
    put(api, "admin", version, "approved")
    assert put(api, "approver", version, "production").json()["stage"] == "canary"
    assert put(api, "approver", version, "archived").json()["stage"] == "archived"
    models = {one["name"]: one for one in api.ask("viewer", "GET", "/models").json()["items"]}
    assert models[MODEL]["canary"] is None


def test_a_rejection_is_a_review_of_the_ledger(api: ServedApi, version: int) -> None:
    told = put(api, "approver", version, "rejected", "labels are wrong").json()
    assert (told["changed"], told["by"], told["reason"]) == (True, "approver", "labels are wrong")
    refused = put(api, "approver", version, "production")
    assert problem(refused) == (409, "not_promotable")
    assert refused.json()["ground"] == "rejection"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"stage": "production"}, 422, "invalid_request"),
        ({"stage": "production", "reason": ""}, 422, "invalid_request"),
        ({"stage": "production", "reason": " "}, 409, "not_promotable"),
        ({"stage": "production", "reason": "r" * 501}, 422, "invalid_request"),
        ({"stage": "Production", "reason": "r"}, 422, "invalid_request"),
        ({"stage": "production", "reason": "r", "by": "root"}, 422, "invalid_request"),
    ],
)
def test_a_wrong_decision_is_refused(api: ServedApi, body: dict[str, str], status: int, code: str) -> None:
    before = api.rows()
    assert problem(api.ask("approver", "PUT", f"/models/{MODEL}/versions/1/stage", body)) == (status, code)
    assert api.rows() == before


def test_a_reason_has_one_printable_line(api: ServedApi, version: int) -> None:
    before = api.rows()
    assert problem(put(api, "approver", version, "approved", "two\nlines")) == (422, "not_printable")
    assert api.rows() == before


def test_an_unknown_version_or_model_is_refused(api: ServedApi) -> None:
    before = api.rows()
    assert problem(put(api, "approver", 999, "production")) == (404, "version_missing")
    for stage in ("approved", "rejected", "production", "archived"):
        answer = api.ask(
            "approver", "PUT", "/models/nothing/versions/1/stage", {"stage": stage, "reason": "r"}
        )
        assert problem(answer) == (404, "not_found")
    assert api.rows() == before


def test_a_limited_role_decides_only_about_its_groups(api: ServedApi, version: int) -> None:
    before = api.rows()
    for stage in ("approved", "rejected", "production", "archived"):
        assert problem(put(api, "florist", version, stage)) == (403, "role_needed")
    assert api.rows() == before


@pytest.mark.parametrize("stages", [("production", "archived"), ("archived", "archived")])
def test_changes_at_once_leave_one_order(api: ServedApi, version: int, stages: tuple[str, str]) -> None:
    """The second decision sees the first: nobody promotes an archived version, and one archival has one row."""
    put(api, "admin", version, "approved")
    before = api.rows()
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda stage: put(api, "approver", version, stage), stages))
    refused = [one for one in answers if one.status_code != 200]
    assert [(problem(one), one.json()["ground"]) for one in refused] in (
        [],
        [((409, "not_promotable"), "archived")],
    )
    assert api.rows() == before + len(set(stages)) - len(refused)
    assert api.context.show(MODEL, version).stage == "archived"
