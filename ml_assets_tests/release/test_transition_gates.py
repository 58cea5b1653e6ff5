"""Gates of single transitions: what a promotion makes of their decision in the newest evaluation."""

from collections.abc import Callable
from typing import Any

import pytest

from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.promotion import newest_data
from ml_assets.model.release.promotion import promote as promote_version
from ml_assets.model.release.releases import NotPromotable, NotReviewable, Releases
from ml_assets.model.release.reviews import review, waiting
from ml_assets.model.release.rollback import rollback
from ml_assets.model.release.rules import Rules, gates_as_json
from ml_assets_tests.release.conftest import Evaluate, put_in_force, refuses
from resources.ledger import EvaluationRow, GateStatus, Person, RuleOutcome, TransitionOutcome

GATE = {"name": "precise", "metric": "auc", "at_least": 0.8}
RULES = Rules.model_validate({"gates": {"production": [GATE]}})
OF_CANARY = Rules.model_validate(
    {
        "canary": {"bake_hours": 0.000001},
        "gates": {"canary": [GATE], "production": [GATE | {"name": "exact"}]},
    }
)
REVIEWED = RULES.model_copy(update={"approval": Rules.model_validate({"approval": {}}).approval})

Decided = Callable[..., EvaluationRow]


def outcome(rules: Rules, to: str, status: GateStatus) -> TransitionOutcome:
    failed = RuleOutcome(
        rule=rules.gates_before(to)[0].name,
        slice="all rows",
        result="passed" if status == "blessed" else "failed",
        asks="auc at least 0.8000",
        found="auc is 0.71",
        would_pass="" if status == "blessed" else "auc 0.8",
    )
    return TransitionOutcome(
        to=to, gates=gates_as_json(rules.gates_before(to)), status=status, summary=status, rules=(failed,)
    )


@pytest.fixture
def decided(evaluate: Evaluate) -> Decided:
    """`(bundle, rules, **status by transition) -> EvaluationRow`."""

    def decided(bundle: Bundle, rules: Rules, **by_transition: GateStatus) -> EvaluationRow:
        said = tuple(outcome(rules, to, status) for to, status in by_transition.items())
        return evaluate(bundle, told=str(said), transitions=said)

    return decided


def promote(releases: Releases, rules: Rules, number: int = 2, **changes: Any) -> str:
    return promote_version(
        releases, "small", number, by=Person.unchecked("bob"), reason="better", rules=rules, **changes
    ).alias


def test_what_fails_a_gate_is_named_with_what_would_pass(
    releases: Releases, two_versions: tuple[Bundle, Bundle], decided: Decided
) -> None:
    decided(two_versions[1], RULES, production="rejected")
    with refuses(
        NotPromotable, "gates", r"release\.gates\.production", "“precise”", "auc is 0.71", "auc 0.8"
    ):
        promote(releases, RULES)
    decided(two_versions[1], RULES, production="undecided")
    with refuses(NotPromotable, "gates", "does not pass"):
        promote(releases, RULES)
    decided(two_versions[1], RULES, production="blessed")
    assert promote(releases, RULES) == "production"


def test_a_decision_of_other_gates_does_not_count(
    releases: Releases, two_versions: tuple[Bundle, Bundle], decided: Decided
) -> None:
    lower = Rules.model_validate({"gates": {"production": [GATE | {"at_least": 0.1}]}})
    decided(two_versions[1], lower, production="blessed")
    with refuses(NotPromotable, "gates", "declared later"):
        promote(releases, RULES)


def test_each_transition_has_its_own_gates(
    releases: Releases, two_versions: tuple[Bundle, Bundle], decided: Decided
) -> None:
    decided(two_versions[1], OF_CANARY, canary="rejected", production="blessed")
    with refuses(NotPromotable, "gates", r"release\.gates\.canary"):
        promote(releases, OF_CANARY)
    decided(two_versions[1], OF_CANARY, canary="blessed", production="rejected")
    assert promote(releases, OF_CANARY) == "canary"
    with refuses(NotPromotable, "gates", r"release\.gates\.production"):
        promote(releases, OF_CANARY)
    decided(two_versions[1], OF_CANARY, canary="blessed", production="blessed")
    assert promote(releases, OF_CANARY) == "production"


def test_the_way_back_to_a_version_has_no_gates(
    releases: Releases, two_versions: tuple[Bundle, Bundle], decided: Decided
) -> None:
    decided(two_versions[0], RULES, production="blessed")
    promote(releases, RULES, 1)
    decided(two_versions[1], RULES, production="blessed")
    promote(releases, RULES, 2)
    decided(two_versions[0], RULES, production="rejected")
    assert rollback(releases, "small", by=Person.unchecked("bob"), reason="slow").version == "1"


def test_the_default_is_a_version_that_passes(
    releases: Releases, two_versions: tuple[Bundle, Bundle], decided: Decided
) -> None:
    decided(two_versions[0], RULES, production="blessed")
    decided(two_versions[1], RULES, production="rejected")
    newest = newest_data(releases, "small", RULES)
    assert newest is not None
    assert newest.number == 1


def test_a_passing_backfill_is_not_the_default_beside_newer_data(
    releases: Releases, two_versions: tuple[Bundle, Bundle], evaluate: Evaluate
) -> None:
    """The gates were declared after the promotion, so the version in production has no decision about them."""
    promote(releases, Rules(), 1)
    said = (outcome(RULES, "production", "blessed"),)
    evaluate(two_versions[1], partition="2013-12-30", transitions=said)
    newest = newest_data(releases, "small", RULES)
    assert newest is not None
    assert newest.number == 1


def test_nobody_reviews_a_version_that_fails_the_gates_of_production(
    releases: Releases, two_versions: tuple[Bundle, Bundle], decided: Decided
) -> None:
    decided(two_versions[1], REVIEWED, production="rejected")
    decided(two_versions[0], REVIEWED, production="blessed")
    put_in_force(releases, REVIEWED)
    assert [version.number for version, _ in waiting(releases, "small", REVIEWED)] == [1]
    with refuses(NotReviewable, "gates", "“precise”"):
        review(releases, "small", 2, approves=True, by=Person.unchecked("eve"), reason="fine", rules=REVIEWED)
