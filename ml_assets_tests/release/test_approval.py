"""Approval: somebody else than the author, for one evaluation of one bundle, before the promotion."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import ValidationError

from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.history import lines
from ml_assets.model.release.promotion import promote as promote_version
from ml_assets.model.release.registry import VersionMissing
from ml_assets.model.release.releases import NotPromotable, NotReviewable, Releases
from ml_assets.model.release.reviews import review as review_version
from ml_assets.model.release.reviews import waiting
from ml_assets.model.release.rollback import demote, rollback
from ml_assets.model.release.rules import NO_RULES, Rules
from ml_assets_tests.release.conftest import Evaluate, put_in_force, refuses
from ml_assets_tests.resources.ledger_writer import with_account
from resources.ledger import Ledger, NotPrintable, Person, Promotion, Review

RULES = Rules.model_validate({"approval": {}})
"""Neither the author nor the promoter may approve."""


@pytest.fixture
def review(releases: Releases) -> Callable[..., Review]:
    """`(author, number=2, approves=True, reason=…, rules=RULES) -> Review`. `ada` ran all evaluations."""

    def review(author: str, number: int = 2, *, approves: bool = True, **changes: object) -> Review:
        facts = {"reason": "holds on every slice", "rules": RULES, "by": Person.unchecked(author), **changes}
        return review_version(releases, "small", number, approves=approves, **facts)

    return review


@pytest.fixture
def promote(releases: Releases, two_versions: tuple[Bundle, Bundle]) -> Callable[..., Promotion]:
    """`(author, rules=RULES) -> Promotion` of version 2."""

    def promote(author: str, number: int = 2, rules: Rules = RULES) -> Promotion:
        return promote_version(
            releases, "small", number, by=Person.unchecked(author), reason="better", rules=rules
        )

    return promote


def test_a_version_is_promoted_by_one_person_after_the_approval_of_another(
    releases: Releases, review: Callable[..., Review], promote: Callable[..., Promotion]
) -> None:
    with refuses(NotPromotable, "approval", r"its evaluation \w{12}", "ml-assets approve small 2"):
        promote("ada")
    assert review("bob").approves
    with refuses(NotPromotable, "approval", "approved by bob", "excludes the promoter"):
        promote("bob")
    assert promote("ada").version == "2"
    assert [type(one).__name__ for one in releases.log.decisions("small")][-2:] == ["Review", "Promotion"]


def test_the_author_of_the_evaluation_may_not_approve(
    releases: Releases, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle], review: Callable[..., Review]
) -> None:
    """Also not if somebody else evaluated it again."""
    with refuses(NotReviewable, "reviewer", "excludes the author", "ada ran"):
        review("ada")
    evaluate(two_versions[1], told="again", by=Person.unchecked("eve"))
    for author in ("ada", "eve"):
        with refuses(NotReviewable, "reviewer", "excludes the author", f"{author} ran"):
            review(author)
    assert review("bob").author == "bob"


@pytest.mark.parametrize("name", ["Ada", "ada ", " ADA", "\uff41da"])
def test_a_name_in_another_spelling_is_the_same_person(
    review: Callable[..., Review], promote: Callable[..., Promotion], name: str
) -> None:
    with refuses(NotReviewable, "reviewer", "excludes the author"):
        review(name, 1)
    rules = Rules.model_validate({"approval": {"by": ["Bob"]}})
    review("bob", rules=rules)
    for promoter in ("BOB", "b\uff4fb "):
        with refuses(NotPromotable, "approval", "excludes the promoter"):
            promote(promoter, rules=rules)


@pytest.mark.parametrize("said", ["fine\n2026-11-23 09:00:00 UTC  approved", "\x1b[2K", "\u202e", "\udcff"])
@pytest.mark.usefixtures("two_versions")
def test_text_that_does_not_print_is_never_stored(
    releases: Releases, review: Callable[..., Review], promote: Callable[..., Promotion], said: str
) -> None:
    """It would forge a line of `history`, or reach the terminal of a reader."""
    before = releases.log.decisions("small")
    with pytest.raises(NotPrintable, match=r"^the reason "):
        review("bob", reason=said)
    for act in (rollback, demote):
        with pytest.raises(NotPrintable, match=r"^the model "):
            act(releases, f"small{said}", by=Person.unchecked("ada"), reason="slow")
    with pytest.raises(NotPrintable, match=r"^the author "):
        promote(said, rules=NO_RULES)
    assert releases.log.decisions("small") == before


def test_only_named_persons_may_review(
    releases: Releases, review: Callable[..., Review], promote: Callable[..., Promotion]
) -> None:
    rules = Rules.model_validate({"approval": {"by": ["cyd", "dan"], "not_by": []}})
    with refuses(NotReviewable, "reviewer", r"release\.approval\.by", "allows cyd, dan, not bob"):
        review("bob", rules=rules)
    put_in_force(releases, RULES)
    review("bob")
    put_in_force(releases, rules)
    with refuses(NotPromotable, "approval", "by bob at", r"release\.approval\.by"):
        promote("ada", rules=rules)


def test_one_person_may_do_everything_if_the_section_says_so(
    review: Callable[..., Review], promote: Callable[..., Promotion]
) -> None:
    rules = Rules.model_validate({"approval": {"not_by": []}})
    review("ada", rules=rules)
    assert promote("ada", rules=rules).version == "2"


def test_an_approval_is_void_after_another_evaluation(
    evaluate: Evaluate,
    two_versions: tuple[Bundle, Bundle],
    review: Callable[..., Review],
    promote: Callable[..., Promotion],
) -> None:
    first = review("bob")
    evaluate(two_versions[1], told="again")
    with refuses(NotPromotable, "approval", "an earlier evaluation"):
        promote("ada")
    assert review("bob").place > first.place
    assert promote("ada").version == "2"


@pytest.mark.usefixtures("two_versions")
def test_an_approval_is_of_one_bundle(
    review: Callable[..., Review], promote: Callable[..., Promotion]
) -> None:
    review("bob", 1)
    with refuses(NotPromotable, "approval", r"small 2", r"its evaluation \w{12}"):
        promote("ada")


def test_a_rejection_stands_and_takes_an_approval_back(
    review: Callable[..., Review], promote: Callable[..., Promotion]
) -> None:
    review("bob")
    review("cyd", approves=False, reason="one slice is worse")
    with refuses(NotPromotable, "rejection", "by cyd at", "one slice is worse"):
        promote("ada")
    with refuses(NotReviewable, "rejection", "by cyd at", "one slice is worse"):
        review("bob")


@pytest.mark.usefixtures("two_versions")
def test_of_two_reviewers_at_once_one_wins_and_the_other_is_told(
    releases: Releases, review: Callable[..., Review]
) -> None:
    """Whoever comes second with an approval gets the first review, or the refusal."""
    with ThreadPoolExecutor(2) as both:
        first, second = both.map(review, ("bob", "cyd"))
    assert first == second
    assert len([one for one in releases.log.decisions("small") if isinstance(one, Review)]) == 1

    def decide(approves: bool) -> str:
        try:
            return str(review("dan" if approves else "eve", 1, approves=approves).approves)
        except NotReviewable as told:
            return str(told)

    with ThreadPoolExecutor(2) as both:
        approved, rejected = both.map(decide, (True, False))
    assert rejected == "False"
    assert approved == "True" or "was rejected by eve" in approved


@pytest.mark.usefixtures("two_versions")
def test_what_cannot_be_reviewed_is_refused(
    evaluate: Evaluate, two_versions: tuple[Bundle, Bundle], review: Callable[..., Review]
) -> None:
    with refuses(NotReviewable, "reason", "approving small 2"):
        review("bob", reason=" ")
    with refuses(NotReviewable, "approval", "small has no `approval`"):
        review("bob", rules=NO_RULES)
    with pytest.raises(VersionMissing):
        review("bob", 7)
    evaluate(two_versions[1], "rejected", told="again")
    with refuses(NotReviewable, "evaluation", "is rejected, not blessed"):
        review("bob")
    assert not review("bob", approves=False).approves


def test_a_rollback_needs_no_approval(
    releases: Releases,
    evaluate: Evaluate,
    two_versions: tuple[Bundle, Bundle],
    review: Callable[..., Review],
    promote: Callable[..., Promotion],
) -> None:
    review("bob", 1)
    promote("ada", 1)
    evaluate(two_versions[1], told="beside version 1")
    review("bob")
    promote("ada")
    evaluate(two_versions[0], "rejected", told="later")
    review("bob", 1, approves=False)
    assert rollback(releases, "small", by=Person.unchecked("ada"), reason="slow").version == "1"
    assert promote("ada").version == "2", "it was in production before"


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"approvals": 2}, "unknown key 'approvals': did you mean 'approval'"),
        ({"approval": {"by": [""]}}, "at least 1 character"),
        ({"approval": {"not_by": ["me"]}}, "'author' or 'promoter'"),
        ({"canary": {"share": 0.1, "bake_hours": 1}}, "canary.by"),
        ({"canary": {}}, "bake_hours"),
        ({"canary": {"bake_hours": 0}}, "greater than 0"),
    ],
)
def test_only_rules_that_work_are_accepted(section: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Rules.model_validate(section)


def test_a_void_approval_stays_void(
    releases: Releases,
    review: Callable[..., Review],
    promote: Callable[..., Promotion],
    evaluate: Evaluate,
    two_versions: tuple[Bundle, Bundle],
) -> None:
    """An evaluation with the digest of the approved one was recorded again, after another one."""
    review("bob")
    approved = releases.standings("small").of(two_versions[1].digest).newest
    assert approved is not None
    evaluate(two_versions[1], told="again")
    evaluate(two_versions[1], digest=approved.evaluation_digest)
    assert "void: evaluated again at 20" in "\n".join(lines(releases.log.decisions("small")))
    assert [one.number for one, _ in waiting(releases, "small", RULES)] == [2, 1]
    with refuses(NotPromotable, "approval", "by bob at", "evaluated again at 20"):
        promote("ada")
    review("bob", reason="read the newest")
    assert promote("ada").version == "2"


@pytest.mark.parametrize("is_added_again", [False, True])
def test_an_approval_ends_with_the_account_of_its_author(
    ledger: Ledger,
    releases: Releases,
    review: Callable[..., Review],
    evaluate: Evaluate,
    two_versions: tuple[Bundle, Bundle],
    is_added_again: bool,
) -> None:
    """Whoever stole a token may have approved with it."""
    accounts = ledger.accounts
    root, ada, bob = (with_account(ledger, name) for name in ("root", "ada", "bob"))
    evaluate(two_versions[1], by=ada)
    rejected = review("bob", 1, approves=False, by=bob)
    review("bob", by=bob)
    accounts.revoke("bob", root, reason="token was stolen")
    if is_added_again:
        accounts.add_by_token("bob", root)
    with refuses(
        NotPromotable,
        "approval",
        r"by bob \(checked by token\) at",
        "the account of bob",
        r"20.* UTC by root: token was stolen",
        "ml-assets approve small 2",
    ):
        promote_version(releases, "small", 2, by=ada, reason="better", rules=RULES)
    assert review("root", 1, approves=False, by=root) == rejected, "a rejection stands"
    assert review("root", by=root).author == "root"
    assert promote_version(releases, "small", 2, by=ada, reason="better", rules=RULES)
