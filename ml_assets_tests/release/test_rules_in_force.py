"""Rules of releases in the ledger: an edited `defs.yaml` decides nothing until somebody who may approve accepts it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import ValidationError

from ml_assets.model.evaluation.spec import EvaluationSpec, Gate
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.history import lines
from ml_assets.model.release.promotion import promote, register
from ml_assets.model.release.releases import NotPromotable, NotReviewable, Releases, RulesNotAccepted
from ml_assets.model.release.reviews import accept_rules, review, waiting
from ml_assets.model.release.rollback import archive, demote, rollback
from ml_assets.model.release.rules import NO_RULES, Rules, deciding_as_json
from ml_assets.model.release.rules_in_force import RulesLog, as_json, changes, in_force
from ml_assets_tests.release.conftest import Evaluate, put_in_force, refuses
from ml_assets_tests.resources.ledger_chains import attacker
from ml_assets_tests.resources.ledger_writer import with_account
from ml_assets_tests.tables.orders_table import OrdersTable
from resources.ledger import IdentityNeeded, Ledger, LedgerChanged, Person, Review, RulesRow

RULES = Rules.model_validate({"approval": {}})
ADA, BOB, CYD = (Person.unchecked(name) for name in ("ada", "bob", "cyd"))
"""`ada` ran the evaluation."""


@pytest.fixture
def registered(releases: Releases, evaluate: Evaluate, run_id: str, bundle: Bundle) -> Releases:
    """Version 1, registered by a pipeline whose rules ask for an approval."""
    evaluate(bundle)
    register(releases, bundle, run_id=run_id, links={}, rules=RULES)
    return releases


def history_of(releases: Releases) -> str:
    return "\n".join(lines(releases.log.decisions("small")))


def test_an_edited_defs_yaml_does_not_promote_without_the_approval(registered: Releases) -> None:
    """The attack: drop `approval` from the own copy, and promote alone."""
    edited: tuple[Rules, ...] = (
        NO_RULES,
        Rules.model_validate({"approval": {"not_by": []}}),
        Rules.model_validate({"approval": {"by": ["ada"]}}),
    )
    for rules in edited:
        with refuses(
            NotPromotable,
            "rules",
            "`release` in this defs.yaml",
            r"rules \w{12} of small",
            r"approval.* → ",
            "ml-assets rules accept small",
        ):
            promote(registered, "small", 1, by=Person.unchecked("ada"), reason="mine", rules=rules)
        with refuses(NotReviewable, "rules", r"rules \w{12} of small"):
            review(
                registered, "small", 1, approves=True, by=Person.unchecked("ada"), reason="mine", rules=rules
            )
        with refuses(
            RulesNotAccepted,
            "reviewer",
            r"approval\.not_by of rules \w{12}",
            "excludes the author",
            "ada ran",
        ):
            accept_rules(registered, "small", rules, by=ADA, reason="simpler")
    assert "promoted" not in history_of(registered)


def test_whoever_accepted_rules_does_not_promote_under_them(registered: Releases) -> None:
    """Otherwise one approver could drop the approval, alone. A second change by the same person is no way round."""
    accept_rules(registered, "small", NO_RULES, by=BOB, reason="simpler")
    dossier_free = Rules.model_validate({"canary": {"bake_hours": 1e-9}})
    accept_rules(registered, "small", dossier_free, by=BOB, reason="again")
    with refuses(NotPromotable, "acceptance", r"bob accepted rules \w{12} at", "excludes the promoter"):
        promote(registered, "small", 1, by=Person.unchecked("Bob"), reason="mine", rules=dossier_free)
    assert (
        promote(registered, "small", 1, by=Person.unchecked("ada"), reason="ours", rules=dossier_free).alias
        == "canary"
    )
    accept_rules(registered, "small", NO_RULES, by=CYD, reason="no canary")
    assert (
        promote(registered, "small", 1, by=Person.unchecked("bob"), reason="ours", rules=NO_RULES).version
        == "1"
    )


def test_a_comma_in_a_name_does_not_hide_a_change(registered: Releases) -> None:
    """Both lists print as `Lovelace, Ada` without quotes."""
    one, two = (
        Rules.model_validate({"approval": {"by": by}}) for by in (["Lovelace, Ada"], ["Lovelace", "Ada"])
    )
    accept_rules(registered, "small", one, by=BOB, reason="one reviewer")
    with refuses(NotPromotable, "rules", r'approval\.by: "Lovelace, Ada" → "Lovelace", "Ada"'):
        promote(registered, "small", 1, by=Person.unchecked("cyd"), reason="mine", rules=two)


def test_whoever_weakens_rules_and_trains_then_needs_another_person(
    registered: Releases, evaluate: Evaluate, bundle: Bundle
) -> None:
    """The attack: accept rules without an approval, train afterwards, promote alone."""
    authors = Rules.model_validate({"approval": {"by": ["bob", "cyd"], "not_by": ["author"]}})
    accept_rules(registered, "small", authors, by=CYD, reason="reviewers")
    accept_rules(registered, "small", NO_RULES, by=BOB, reason="simpler")
    evaluate(bundle, told="again", by=Person.unchecked("bob"))
    for promoter in ("bob", "ada"):
        with refuses(
            NotPromotable,
            "acceptance",
            r"bob accepted rules \w{12} at",
            "excludes the author",
            "bob ran",
            r"approve under rules \w{12}",
            "ml-assets rules accept small",
        ):
            promote(registered, "small", 1, by=Person.unchecked(promoter), reason="mine", rules=NO_RULES)
    assert accept_rules(registered, "small", NO_RULES, by=CYD, reason="I agree").author == "cyd"
    assert (
        promote(registered, "small", 1, by=Person.unchecked("bob"), reason="ours", rules=NO_RULES).version
        == "1"
    )


def test_only_a_person_who_might_approve_confirms_weaker_rules(
    registered: Releases, evaluate: Evaluate, bundle: Bundle
) -> None:
    """The attack: drop the approval, train, and let somebody who could never approve accept the rules, too."""
    reviewers = Rules.model_validate({"approval": {"by": ["bob", "cyd"]}})
    accept_rules(registered, "small", reviewers, by=CYD, reason="reviewers")
    dropped = accept_rules(registered, "small", NO_RULES, by=BOB, reason="simpler")
    evaluate(bundle, told="again", by=BOB)
    dan = Person.unchecked("dan")
    assert accept_rules(registered, "small", NO_RULES, by=dan, reason="whatever") == dropped
    other = Rules.model_validate({"canary": {"bake_hours": 1e-9}})
    accept_rules(registered, "small", other, by=dan, reason="whatever")
    for promoter in (BOB, dan):
        with refuses(
            NotPromotable,
            "acceptance",
            r"bob accepted rules \w{12} at",
            "bob ran",
            r"approve under rules \w{12}",
            "ml-assets rules accept small",
        ):
            promote(registered, "small", 1, by=promoter, reason="mine", rules=other)
    accept_rules(registered, "small", other, by=CYD, reason="I agree")
    assert promote(registered, "small", 1, by=BOB, reason="ours", rules=other).alias == "canary"


def test_another_function_or_direction_of_a_metric_is_a_change_of_its_gate(
    releases: Releases, evaluate: Evaluate, run_id: str, bundle: Bundle
) -> None:
    """The attack: let a gate on an own metric call a function that is always 0, or count more as better."""

    def rules(function: str, better: str) -> Rules:
        section = EvaluationSpec.model_validate(
            {
                "objective": "binary",
                "metrics": [
                    {"function": function, "better": better},
                    {"function": f"{function}_shown", "better": better},
                ],
                "gates": [{"name": "cheaper", "metric": "cost", "better_than": "champion"}],
            }
        )
        return Rules.of(RULES, section.deciding())

    before = rules("prices.cost", "lower")
    evaluate(bundle, gates=deciding_as_json(before.evaluation or {}))
    register(releases, bundle, run_id=run_id, links={}, rules=before)
    review(releases, "small", 1, approves=True, by=BOB, reason="fine", rules=before)
    for after in (rules("easy.cost", "lower"), rules("prices.cost", "higher")):
        with refuses(
            NotPromotable,
            "rules",
            "`evaluation` in this defs.yaml",
            r"rules \w{12} of small",
            r"evaluation\.metrics: better lower function prices\.cost → function \w+\.cost better \w+\)",
        ):
            promote(releases, "small", 1, by=ADA, reason="mine", rules=after)
    put_in_force(releases, rules("prices.cost", "higher"))
    with refuses(NotPromotable, "gates", "other gates", r"evaluation \w{12}"):
        promote(releases, "small", 1, by=ADA, reason="mine", rules=rules("prices.cost", "higher"))


def test_whoever_puts_rules_back_may_promote_again(registered: Releases) -> None:
    """Nobody else has to accept rules that others decided."""
    accept_rules(registered, "small", NO_RULES, by=BOB, reason="simpler")
    accept_rules(registered, "small", RULES, by=BOB, reason="a mistake")
    review(registered, "small", 1, approves=True, by=Person.unchecked("cyd"), reason="fine", rules=RULES)
    assert (
        promote(registered, "small", 1, by=Person.unchecked("bob"), reason="ours", rules=RULES).version == "1"
    )


def gates(at_least: float) -> dict[str, object]:
    """The settings of `evaluation` by which gates decide."""
    return {"gates": [{"name": "accurate", "metric": "auc", "at_least": at_least}]}


def test_changed_gates_are_a_decision_and_need_an_evaluation(
    releases: Releases, evaluate: Evaluate, run_id: str, bundle: Bundle
) -> None:
    """Without it, an edited file promotes an old version past a gate that it never met, or drops the gate alone."""
    before, after = (Rules.of(RULES, gates(limit)) for limit in (0.7, 0.9))
    evaluate(bundle, gates=deciding_as_json(gates(0.7)))
    register(releases, bundle, run_id=run_id, links={}, rules=before)
    review(releases, "small", 1, approves=True, by=BOB, reason="fine", rules=before)
    with refuses(
        NotPromotable,
        "rules",
        "`evaluation` in this defs.yaml",
        r"rules \w{12} of small",
        r'evaluation\.gates "accurate": metric auc at_least 0\.7 → metric auc at_least 0\.9',
    ):
        promote(releases, "small", 1, by=ADA, reason="mine", rules=after)
    with refuses(RulesNotAccepted, "reviewer", "excludes the author", "ada ran"):
        accept_rules(releases, "small", after, by=ADA, reason="weaker")
    accept_rules(releases, "small", after, by=CYD, reason="higher bar")
    again = (r"evaluation \w{12}", "other gates", "ml-assets launch small 2013-12-31")
    with refuses(NotPromotable, "gates", *again):
        promote(releases, "small", 1, by=ADA, reason="mine", rules=after)
    assert waiting(releases, "small", after) == []
    # The figures are the same, and so is the digest of the evaluation.
    (first,) = releases.log.evaluations("small")
    evaluate(bundle, digest=first.evaluation_digest, gates=deciding_as_json(gates(0.9)))
    with refuses(NotPromotable, "approval", "by bob at", "evaluated again at 20"):
        promote(releases, "small", 1, by=ADA, reason="mine", rules=after)
    review(releases, "small", 1, approves=True, by=BOB, reason="above it, too", rules=after)
    assert promote(releases, "small", 1, by=ADA, reason="ours", rules=after).version == "1"


def test_a_change_of_gates_is_a_line_for_each_gate_without_defaults() -> None:
    kept = Gate.model_validate(
        {"name": "no worse", "metric": "auc", "better_than": "champion", "margin": -0.01}
    )
    before, after = (
        Rules.of(RULES, {"gates": [one.model_dump(mode="json"), kept.model_dump(mode="json")]})
        for one in (
            Gate.model_validate(
                {"name": "slices", "metric": "auc", "at_least": 0.7, "slice": {"origin": "*"}}
            ),
            Gate.model_validate({"name": "small", "metric": "bundle_mb", "at_most": 20}),
        )
    )
    assert changes(before, after) == [
        'evaluation.gates: "slices", "no worse" → "small", "no worse"',
        'evaluation.gates "slices": metric auc at_least 0.7 slice.origin * → not given',
        'evaluation.gates "small": not given → metric bundle_mb at_most 20.0',
    ]


@pytest.mark.parametrize(
    ("key", "before", "after", "line"),
    [
        (
            "slices",
            [{"name": "age", "column": "age", "edges": [18]}],
            [{"name": "age", "column": "age", "edges": [65]}],
            'evaluation.slices "age": column age edges 18 → column age edges 65',
        ),
        (
            "gates",
            [{"name": "a", "metric": "auc"}, {"name": "b", "metric": "auc"}],
            [{"name": "b", "metric": "auc"}, {"name": "a", "metric": "auc"}],
            'evaluation.gates: "a", "b" → "b", "a"',
        ),
        (
            "gates",
            [{"name": "a", "metric": "auc"}] * 2,
            [{"name": "a", "metric": "auc"}],
            'evaluation.gates: name a metric auc, name a metric auc → "a"',
        ),
    ],
)
def test_rules_that_differ_never_differ_without_a_word(key: str, before: Any, after: Any, line: str) -> None:
    """Refusals name the changes: parts of a slice that no gate has, the order, and a name used twice."""
    assert line in changes(*(Rules.of(RULES, {key: one}) for one in (before, after)))


def test_rules_are_not_accepted_beside_an_unchecked_author(
    registered: Releases, ledger: Ledger, evaluate: Evaluate, bundle: Bundle
) -> None:
    """Whoever launched in Dagster's pages could drop the approval of the own model."""
    bob = with_account(ledger, "bob")
    with refuses(
        RulesNotAccepted,
        "reviewer",
        r"that ada ran its evaluation \w{12}",
        r"release\.approval\.not_by of rules \w{12}",
        "ml-assets launch small 2013-12-31",
        "archive its version",
    ):
        accept_rules(registered, "small", NO_RULES, by=bob, reason="simpler")
    evaluate(bundle, by=with_account(ledger, "svc"))
    assert accept_rules(registered, "small", NO_RULES, by=bob, reason="simpler").by == bob


CANARY = {"bake_hours": 24}
WEAKER: list[tuple[dict[str, object], dict[str, object]]] = [
    ({"approval": {}}, {}),
    ({"approval": {}}, {"approval": {"not_by": ["author"]}}),
    ({"approval": {"by": ["bob"]}}, {"approval": {}}),
    ({"approval": {"by": ["bob"]}}, {"approval": {"by": ["bob", "cyd"]}}),
    ({"canary": CANARY}, {}),
    ({"canary": CANARY}, {"canary": {"bake_hours": 1}}),
    ({"approval": {}}, {"canary": CANARY}),
    ({"approval": {"by": ["bob"]}}, {"approval": {"by": ["bob"], "processes": ["svc"]}}),
    ({"evaluation": gates(0.9)}, {"evaluation": gates(0.7)}),
    ({"evaluation": gates(0.9)}, {}),
]
NO_WEAKER: list[tuple[dict[str, object], dict[str, object]]] = [
    ({}, {"approval": {}}),
    ({"approval": {"not_by": []}}, {"approval": {"by": ["bob"]}}),
    ({"approval": {"by": ["bob", "cyd"]}}, {"approval": {"by": ["Bob"]}}),
    ({"approval": {}}, {"approval": {}, "canary": CANARY}),
]


@pytest.mark.parametrize(("before", "after"), [*WEAKER, *NO_WEAKER])
def test_only_a_checked_person_weakens_rules_once_accounts_exist(
    ledger: Ledger, before: dict[str, object], after: dict[str, object]
) -> None:
    """Rules that somebody weakened under an unchecked name end with the first account, and stricter ones stay."""
    first, second = (as_json(Rules.model_validate(one)) for one in (before, after))
    log = ledger.models
    log.record_first_rules("small", first, ADA)
    log.accept_rules("small", second, BOB, reason="other", allow=lambda: None)
    assert as_json(in_force(RulesLog.read(ledger, "small"))) == second, "without accounts, the newest"
    ledger.accounts.add_by_token("root", Person.unchecked("root"), is_administrator=True)
    found = RulesLog.read(ledger, "small")
    assert as_json(in_force(found)) == (first if (before, after) in WEAKER else second)
    assert ("nobody checked that it was bob" in found.why_unconfirmed) == ((before, after) in WEAKER)
    root = with_account(ledger, "root")
    log.accept_rules("small", second, root, reason="I agree", allow=lambda: None)
    found = RulesLog.read(ledger, "small")
    assert (as_json(in_force(found)), found.why_unconfirmed) == (second, "")


def test_an_unchecked_weakening_promotes_nobody_once_accounts_exist(
    registered: Releases, ledger: Ledger
) -> None:
    """The attack: drop the approval under a name that nobody checks, and promote after accounts exist."""
    accept_rules(registered, "small", NO_RULES, by=BOB, reason="simpler")
    ledger.accounts.add_by_token("root", Person.unchecked("root"), is_administrator=True)
    with refuses(
        NotPromotable, "rules", r"rules \w{12} of small", "it was bob", r"rules \w{12} before them \(approval"
    ):
        promote(registered, "small", 1, by=with_account(ledger, "root"), reason="mine", rules=NO_RULES)
    with refuses(NotPromotable, "approval", r"release\.approval in"):
        promote(registered, "small", 1, by=with_account(ledger, "root"), reason="mine", rules=RULES)
    said = "\n".join(lines(registered.log.decisions("small"), ledger.accounts.all()))
    assert f"    {RulesLog.read(ledger, 'small').why_unconfirmed}" in said


def test_a_run_of_dagsters_pages_is_approved_only_if_the_rules_trust_it(
    registered: Releases, ledger: Ledger, evaluate: Evaluate, bundle: Bundle
) -> None:
    """The process has an account, and whoever launched the run there could be the person who approves."""
    bob = with_account(ledger, "bob")
    evaluate(bundle, by=with_account(ledger, "svc"), launched_in="dagster")

    def approve(rules: Rules) -> Review:
        return review(registered, "small", 1, approves=True, by=bob, reason="ok", rules=rules)

    with refuses(
        NotReviewable,
        "author",
        "the account of svc",
        r"its evaluation \w{12}",
        r"release\.approval\.not_by",
        "ml-assets launch small 2013-12-31",
        r"release\.approval\.processes",
    ):
        approve(RULES)
    evaluate(bundle, by=with_account(ledger, "ada"), launched_in="terminal")
    assert approve(RULES).author == "bob"


def test_a_run_of_a_person_in_the_pages_needs_no_trusted_process(
    registered: Releases, ledger: Ledger, evaluate: Evaluate, bundle: Bundle
) -> None:
    ada, bob = with_account(ledger, "ada"), with_account(ledger, "bob")
    evaluate(bundle, by=ada, launched_in="pages")
    with refuses(NotReviewable, "reviewer", "ada ran its evaluation"):
        review(registered, "small", 1, approves=True, by=ada, reason="mine", rules=RULES)
    assert review(registered, "small", 1, approves=True, by=bob, reason="ok", rules=RULES).author == "bob"


def test_rules_may_name_processes_that_only_others_than_reviewers_launch(
    releases: Releases, ledger: Ledger, evaluate: Evaluate, run_id: str, bundle: Bundle
) -> None:
    bob = with_account(ledger, "bob")
    evaluate(bundle, by=with_account(ledger, "svc"), launched_in="dagster")
    trusting = Rules.model_validate({"approval": {"by": ["bob"], "processes": ["svc"]}})
    register(releases, bundle, run_id=run_id, links={}, rules=trusting)
    assert review(releases, "small", 1, approves=True, by=bob, reason="ok", rules=trusting).approves
    with pytest.raises(ValidationError, match=r"processes[\s\S]*needs `by`"):
        Rules.model_validate({"approval": {"processes": ["svc"]}})


def test_whoever_weakens_rules_does_not_promote_what_the_pages_trained(
    releases: Releases, ledger: Ledger, evaluate: Evaluate, run_id: str, bundle: Bundle
) -> None:
    """The attack: drop the approval, train in Dagster's pages under the account of the process, promote alone."""
    bob = with_account(ledger, "bob")
    authors = Rules.model_validate({"approval": {"not_by": ["author"]}})
    evaluate(bundle, by=with_account(ledger, "ada"), launched_in="terminal")
    register(releases, bundle, run_id=run_id, links={}, rules=authors)
    accept_rules(releases, "small", NO_RULES, by=bob, reason="simpler")
    evaluate(bundle, told="again", by=with_account(ledger, "svc"), launched_in="dagster")
    with refuses(
        NotPromotable,
        "acceptance",
        "the account of svc",
        r"of rules \w{12}, before those of bob",
        "ml-assets rules accept small",
    ):
        promote(releases, "small", 1, by=bob, reason="mine", rules=NO_RULES)
    root = with_account(ledger, "root")
    accept_rules(releases, "small", NO_RULES, by=root, reason="I agree")
    assert promote(releases, "small", 1, by=bob, reason="ours", rules=NO_RULES).version == "1"


def test_history_shows_the_rules_of_each_decision_and_their_changes(registered: Releases) -> None:
    review(registered, "small", 1, approves=True, by=Person.unchecked("bob"), reason="fine", rules=RULES)
    promote(registered, "small", 1, by=Person.unchecked("ada"), reason="first", rules=RULES)
    by = Rules.model_validate({"approval": {"by": ["bob", "cyd"]}})
    accepted = accept_rules(registered, "small", by, by=CYD, reason="two reviewers")
    assert accept_rules(registered, "small", by, by=CYD, reason="again") == accepted, (
        "they are in force already"
    )
    first, second = (one for one in registered.log.decisions("small") if isinstance(one, RulesRow))
    said = history_of(registered)
    assert f"rules       {first.rules_digest[:12]} recorded, by ada" in said
    assert said.count(f"    under rules {first.rules_digest[:12]}") == 2
    assert f"rules       {second.rules_digest[:12]} accepted, by cyd: two reviewers" in said
    assert '    approval.by: none → "bob", "cyd"' in said


def test_a_change_of_rules_is_decided_by_one_person(registered: Releases, ledger: Ledger) -> None:
    with refuses(RulesNotAccepted, "reason", "accepting the rules"):
        accept_rules(registered, "small", NO_RULES, by=BOB, reason=" ")
    ledger.accounts.add_by_token("root", Person.unchecked("root"), is_administrator=True)
    with pytest.raises(IdentityNeeded, match="you are bob"):
        accept_rules(registered, "small", NO_RULES, by=BOB, reason="simpler")
    assert [json.loads(one.rules_json) for one in ledger.models.rules("small")] == [
        json.loads(as_json(RULES))
    ]


def test_with_accounts_an_unchecked_author_blocks_the_approval(
    registered: Releases, ledger: Ledger, evaluate: Evaluate, bundle: Bundle
) -> None:
    """Dagster's pages know no persons, so whoever launched there could approve the own model."""
    bob = with_account(ledger, "bob")

    def approve() -> Person:
        return review(registered, "small", 1, approves=True, by=bob, reason="ok", rules=RULES).by

    with refuses(
        NotReviewable, "author", r"ada ran its evaluation \w{12}", "ml-assets launch small 2013-12-31"
    ):
        approve()
    evaluate(bundle, by=with_account(ledger, "svc"))
    assert approve() == bob


def test_an_approval_of_an_older_evaluation_is_shown_as_void(
    registered: Releases, evaluate: Evaluate, bundle: Bundle
) -> None:
    review(registered, "small", 1, approves=True, by=Person.unchecked("bob"), reason="fine", rules=RULES)
    assert "void:" not in history_of(registered)
    evaluate(bundle, told="again")
    assert "    void: evaluated again at 20" in history_of(registered)


DECISIONS: list[Callable[[Releases], object]] = [
    lambda one: promote(one, "small", 1, by=Person.unchecked("ada"), reason="r", rules=RULES),
    lambda one: rollback(one, "small", by=Person.unchecked("ada"), reason="r"),
    lambda one: demote(one, "small", by=Person.unchecked("ada"), reason="r"),
    lambda one: archive(one, "small", 1, by=Person.unchecked("ada"), reason="r"),
    lambda one: review(one, "small", 2, approves=False, by=Person.unchecked("bob"), reason="r", rules=RULES),
    lambda one: accept_rules(one, "small", NO_RULES, by=BOB, reason="r"),
]


def test_nothing_is_decided_on_a_changed_row(
    releases: Releases, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle], orders: OrdersTable
) -> None:
    """Somebody dropped the triggers and put another name under an approval."""
    for number in (1, 2):
        evaluate(two_versions[number - 1], told=f"beside {number - 1}")
        review(
            releases, "small", number, approves=True, by=Person.unchecked("bob"), reason="fine", rules=RULES
        )
        promote(releases, "small", number, by=Person.unchecked("ada"), reason="good", rules=RULES)
    before = releases.log.decisions("small")
    place = next(one.place for one in before if isinstance(one, Review))
    with attacker(f"sqlite:///{orders.folder}/ledger.db") as connection:
        connection.execute(sa.text(f"UPDATE ledger_decisions SET author = 'cyd' WHERE place = {place}"))
    for decide in DECISIONS:
        with pytest.raises(LedgerChanged, match=rf"row {place} \(review of small, "):
            decide(releases)
    assert len(releases.log.decisions("small")) == len(before)
