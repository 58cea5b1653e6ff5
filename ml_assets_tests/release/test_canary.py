"""Stages: staging, canary, production, without a skip; at most one version in each of the last two."""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.history import lines
from ml_assets.model.release.mlflow_view import differences, show_if_reachable
from ml_assets.model.release.promotion import in_full_minutes, newest_data, promote, register
from ml_assets.model.release.registry import Registry
from ml_assets.model.release.releases import NotPromotable, NotReviewable, Releases
from ml_assets.model.release.reviews import review
from ml_assets.model.release.rollback import archive, demote, replaced_by, rollback
from ml_assets.model.release.rules import NO_RULES, Rules
from ml_assets.model.release.standing import CANARY, PRODUCTION, BundleStandings
from ml_assets_tests.release.conftest import Evaluate, put_in_force, refuses
from resources.ledger import Ledger, Person

LONG = Rules.model_validate({"canary": {"bake_hours": 24}})
SHORT = Rules.model_validate({"canary": {"bake_hours": 1e-9}})
"""A bake time that has passed when the next command begins."""


@pytest.mark.usefixtures("two_versions")
def test_a_version_is_canary_for_its_bake_time_before_production(
    releases: Releases, registry: Registry
) -> None:
    first = promote(releases, "small", 2, by=Person.unchecked("ada"), reason="try it", rules=LONG)
    assert (first.alias, releases.in_production("small")) == (CANARY, None)
    assert releases.standings("small").canary == first
    assert registry.aliased("small", CANARY) == 2
    assert registry.version("small", 2).tags["stage"] == "canary"
    with refuses(NotPromotable, "canary", "bake_hours in defs.yaml is 24", r"from 20.* UTC on"):
        promote(releases, "small", 2, by=Person.unchecked("ada"), reason="now", rules=LONG)
    put_in_force(releases, SHORT)
    second = promote(releases, "small", 2, by=Person.unchecked("ada"), reason="now", rules=SHORT)
    assert second.alias == PRODUCTION
    assert releases.standings("small").canary is None
    assert (registry.aliased("small", CANARY), registry.aliased("small", PRODUCTION)) == (None, 2)
    assert registry.version("small", 2).tags["stage"] == "production"
    said = "\n".join(lines(releases.log.decisions("small")))
    assert "promoted    version 2 (1.0.1) as canary, by ada: try it" in said


@pytest.mark.usefixtures("two_versions")
def test_one_version_is_the_canary(releases: Releases, registry: Registry) -> None:
    for number in (1, 2):
        promote(releases, "small", number, by=Person.unchecked("ada"), reason="try it", rules=LONG)
    stages = {one.number: one.tags["stage"] for one in registry.versions("small")}
    assert stages == {1: "staging", 2: "canary"}
    ended = demote(releases, "small", by=Person.unchecked("bob"), reason="not this one", role=CANARY)
    assert ended.version == "2"
    assert (releases.standings("small").canary, registry.aliased("small", CANARY)) == (None, None)
    with refuses(NotPromotable, "role", "no version of small", "the canary"):
        demote(releases, "small", by=Person.unchecked("bob"), reason="again", role=CANARY)
    assert "demoted     version 2 (1.0.1) as canary, by bob" in "\n".join(
        lines(releases.log.decisions("small"))
    )


def test_a_canary_that_was_compared_with_an_older_champion_stays_canary(
    releases: Releases, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle]
) -> None:
    promote(releases, "small", 2, by=Person.unchecked("ada"), reason="try it", rules=SHORT)
    put_in_force(releases, NO_RULES)
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="urgent")
    put_in_force(releases, SHORT)
    with refuses(NotPromotable, "champion", "no other version", "version 1 is in production"):
        promote(releases, "small", 2, by=Person.unchecked("ada"), reason="now", rules=SHORT)
    evaluate(two_versions[1], told="beside version 1")
    assert (
        promote(releases, "small", 2, by=Person.unchecked("ada"), reason="now", rules=SHORT).alias
        == PRODUCTION
    )


def test_a_version_that_was_in_production_returns_without_being_canary(
    releases: Releases, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle]
) -> None:
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="first")
    evaluate(two_versions[1], told="beside version 1")
    promote(releases, "small", 2, by=Person.unchecked("ada"), reason="better")
    put_in_force(releases, LONG)
    assert (
        promote(releases, "small", 1, by=Person.unchecked("ada"), reason="back", rules=LONG).alias
        == PRODUCTION
    )


@pytest.mark.usefixtures("two_versions")
def test_the_canary_needs_no_approval_and_production_does(releases: Releases) -> None:
    rules = Rules.model_validate({"canary": {"bake_hours": 1e-9}, "approval": {}})
    promote(releases, "small", 2, by=Person.unchecked("ada"), reason="try it", rules=rules)
    with refuses(NotPromotable, "approval", r"release\.approval in defs\.yaml"):
        promote(releases, "small", 2, by=Person.unchecked("ada"), reason="now", rules=rules)
    review(releases, "small", 2, approves=True, by=Person.unchecked("bob"), reason="looks right", rules=rules)
    assert (
        promote(releases, "small", 2, by=Person.unchecked("ada"), reason="now", rules=rules).alias
        == PRODUCTION
    )


@pytest.mark.usefixtures("two_versions")
def test_a_version_that_a_reviewer_rejected_never_becomes_the_canary(releases: Releases) -> None:
    rules = Rules.model_validate({"canary": {"bake_hours": 1e-9}, "approval": {}})
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="try it", rules=rules)
    for number in (1, 2):  # the canary and a version in staging
        review(
            releases,
            "small",
            number,
            approves=False,
            by=Person.unchecked("bob"),
            reason="private data",
            rules=rules,
        )
        with refuses(NotPromotable, "rejection", "by bob at", "private data"):
            promote(releases, "small", number, by=Person.unchecked("ada"), reason="try it", rules=rules)


def test_without_a_number_promote_takes_the_present_canary(
    releases: Releases, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle]
) -> None:
    """Otherwise each night's version takes the place of the last, and the bake time never ends."""

    def default() -> int | None:
        found = newest_data(releases, "small", SHORT)
        return None if found is None else found.number

    evaluate(two_versions[1], told="on newer data", partition="2014-01-31")
    assert default() == 2
    first = promote(releases, "small", 1, by=Person.unchecked("ada"), reason="try it", rules=SHORT)
    assert (default(), replaced_by(releases, first)) == (1, None)
    assert default() == getattr(newest_data(releases, "small"), "number", None), "the rules in force"
    without = newest_data(releases, "small", NO_RULES)
    assert without is not None
    assert without.number == 2, "without the section, there are no canaries"
    evaluate(two_versions[0], "rejected", told="again")
    assert default() == 2
    second = promote(releases, "small", 2, by=Person.unchecked("ada"), reason="not 1", rules=SHORT)
    assert replaced_by(releases, second) == first
    last = promote(releases, "small", 2, by=Person.unchecked("ada"), reason="it held", rules=SHORT)
    assert (last.alias, replaced_by(releases, last)) == (PRODUCTION, None)


@pytest.mark.parametrize(
    ("second", "said"), [(0.0, "14:05"), (0.000001, "14:06"), (59.9, "14:06"), (60.0, "14:06")]
)
def test_the_end_of_the_bake_time_is_rounded_up_to_the_minute(second: float, said: str) -> None:
    """Whoever comes at the printed minute is not refused."""
    since = datetime(2026, 11, 22, 14, 5, tzinfo=UTC) + timedelta(seconds=second)
    assert LONG.canary is not None
    assert in_full_minutes(LONG.canary.end_of_bake(since)) == f"2026-11-23 {said} UTC"


@pytest.mark.usefixtures("two_versions")
def test_an_alias_of_somebodys_own_is_left_alone(releases: Releases, registry: Registry) -> None:
    """A model without canaries may use the name for something else."""
    registry.set_alias("small", CANARY, 1)
    promote(releases, "small", 2, by=Person.unchecked("ada"), reason="first")
    assert registry.aliased("small", CANARY) == 1
    assert differences(releases.registry, releases.log, "small") == []


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2, 3))])
def test_random_commands_keep_one_production_and_the_way_back(
    releases: Releases,
    ledger: Ledger,
    registry: Registry,
    evaluate: Evaluate,
    run_id: str,
    two_versions: tuple[Bundle, Bundle],
    variant: Callable[..., Bundle],
    seed: int,
) -> None:
    """Any sequence of commands leaves the chain whole, and MLflow as the ledger."""
    drawn = random.Random(seed)
    rules = Rules.model_validate({"canary": {"bake_hours": 1e-9}, "approval": {"not_by": []}})
    bundles = list(two_versions)
    stack: list[str] = []  # the newest promotion last; a rollback goes back to the one before it
    demoted: set[str] = set()
    done: set[str] = set()
    for step in range(30):
        number, author, reason = drawn.randint(1, len(bundles)), drawn.choice(["ada", "bob"]), f"step {step}"
        before = BundleStandings.read(ledger.models, "small")
        left = {one.bundle_digest for one in before.archivals} | demoted | set(stack[-1:])
        rest = list(stack)
        while rest and rest[-1] in left:
            rest.pop()
        command = drawn.choice(
            ["register", "evaluate", "approve", *["promote"] * 4, "rollback", "demote", "archive"]
        )
        try:
            match command:
                case "register":
                    bundles.append(variant(fingerprint=f"{len(bundles) + 1:064}"))
                    evaluate(bundles[-1])
                    register(releases, bundles[-1], run_id=run_id, links={})
                case "evaluate":
                    status = drawn.choice(["blessed", "blessed", "rejected"])
                    evaluate(bundles[number - 1], status, told=reason)
                    show_if_reachable(releases.registry, releases.log, "small")  # as the evaluate step does
                case "approve":
                    review(
                        releases,
                        "small",
                        number,
                        approves=True,
                        by=Person.unchecked(author),
                        reason=reason,
                        rules=rules,
                    )
                case "promote":
                    made = promote(
                        releases, "small", number, by=Person.unchecked(author), reason=reason, rules=rules
                    )
                    if made.alias == PRODUCTION and made not in before.promotions:
                        stack.append(made.bundle_digest)
                        demoted.discard(made.bundle_digest)
                case "demote":
                    demoted.add(
                        demote(releases, "small", by=Person.unchecked(author), reason=reason).bundle_digest
                    )
                case "archive":
                    archive(releases, "small", number, by=Person.unchecked(author), reason=reason)
                case "rollback":
                    back = rollback(releases, "small", by=Person.unchecked(author), reason=reason)
                    assert [back.bundle_digest] == rest[-1:]
                    stack = rest
            done.add(command)
        except (NotPromotable, NotReviewable):
            assert command != "rollback" or not rest
        after = BundleStandings.read(ledger.models, "small")
        stages = [version.tags["stage"] for version in registry.versions("small")]
        assert stages.count("production") == (after.in_production is not None)
        assert stages.count("canary") == (after.canary is not None)
        assert differences(releases.registry, releases.log, "small") == []
        ledger.models.verify()
    assert {"promote", "approve"} <= done
