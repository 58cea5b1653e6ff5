"""A process that writes verdicts into a ledger as fast as it can; arguments: URL, name, rounds."""

import sys
import threading
from collections.abc import Callable

from resources.ledger import Ledger, NewEvaluation, NewVerdict, Person, RuleOutcome, TrainedOn

NEW = NewVerdict(
    table="datasets/flights",
    key="2013-01-01",
    content_digest="c1",
    contract_digest="rules",
    status="rejected",
    rows=842,
    body_json="{}",
    run_id="run",
    branch="audit",
)
"""A rejection of a partition."""


EVALUATION = NewEvaluation(
    model="m",
    partition="2013-12-30",
    bundle_digest="b",
    evaluation_digest="e",
    champion_digest=None,
    status="blessed",
    summary="Blessed.",
    rules=(
        RuleOutcome(
            rule="accurate",
            slice="all rows",
            result="passed",
            asks="auc at least 0.7",
            found="0.75",
            would_pass="",
        ),
    ),
    by=Person.unchecked("ada"),
    report="file:///report.html",
    run_id="run",
    trained_on=TrainedOn(
        commit="c",
        table="features/f",
        first="2013-01-01",
        last="2013-12-30",
        partitions=364,
        begins_with="e0",
    ),
)


def with_account(ledger: Ledger, name: str) -> Person:
    """Return the person `name`, proved by the token of an account. Adds the account if there is none in force.

    The first account is that of `root`, the administrator.
    """
    for one in ledger.accounts.in_force():
        if one.name == name:
            return Person.proved(one, "token")
    is_first = not ledger.accounts.all()
    by = Person.unchecked("root") if is_first else with_account(ledger, "root")
    ledger.accounts.add_by_token("root" if is_first else name, by, is_administrator=is_first)
    return with_account(ledger, name)


def write_one_of_each(ledger: Ledger) -> None:
    """One evaluation, semantic version, promotion, demotion, archival, review, dossier and rules of the model `m`."""
    log = ledger.models
    evaluation = log.record_evaluation(EVALUATION)
    log.name_version("m", "b", schema_digest="s", recipe_digest="r", choose=lambda known: "1.0.0")
    promotion = log.promote(
        "m",
        "1",
        "production",
        by=Person.unchecked("ada"),
        reason="first",
        bundle_digest="b",
        evaluation_digest="e",
        despite="rain",
    )
    log.demote(promotion, by=Person.unchecked("ada"), reason="wrong prices")
    log.archive("m", "1", by=Person.unchecked("ada"), reason="recalled", bundle_digest="b")
    log.review(evaluation, "1", approves=False, by=Person.unchecked("bob"), reason="prices look wrong")
    log.record_dossier(evaluation, "1", "d", signed_by="k", by=Person.unchecked("ada"))
    log.record_first_rules("m", "{}", Person.unchecked("ada"))


def assert_one_of_each(ledger: Ledger) -> None:
    """Check that everything is there that `write_one_of_each` wrote."""
    log = ledger.models
    assert [(one.name, one.rules, one.trained_on) for one in log.evaluations("m")] == [
        ("e", EVALUATION.rules, EVALUATION.trained_on)
    ]
    assert log.name_version("m", "b", schema_digest="", recipe_digest="", choose=lambda known: "") == "1.0.0"
    assert [(one.approves, one.evaluation_digest) for one in log.reviews("m")] == [(False, "e")]
    assert [one.reason for one in log.archivals("m")] == ["recalled"]
    assert [(one.dossier_digest, one.signed_by) for one in log.dossiers("m")] == [("d", "k")]
    assert [(one.rules_json, one.author) for one in log.rules("m")] == [("{}", "ada")]
    (promotion,) = log.promotions("m")
    assert promotion.demotion is not None
    facts = (promotion.evaluation_digest, promotion.despite, promotion.demotion.reason)
    assert facts == ("e", "rain", "wrong prices")


def assert_decisions_hold_verdicts_back(ledger: Ledger) -> None:
    """Promote and register in an empty ledger while another thread records a verdict, which must come later."""
    facts = {"by": Person.unchecked("ada"), "reason": "r", "bundle_digest": "b", "evaluation_digest": "e"}
    digests = {"schema_digest": "s", "recipe_digest": "r"}
    log = ledger.models
    _verdicts_come_after(ledger, lambda allow: log.promote("m", "1", "production", allow=allow, **facts))
    _verdicts_come_after(
        ledger, lambda allow: log.name_version("m", "b", choose=lambda known: "1.0.0", allow=allow, **digests)
    )
    assert log.in_production("m") is not None


def _verdicts_come_after(ledger: Ledger, decide: Callable[[Callable[[], None]], object]) -> None:
    """Run `decide` with an `allow`, at whose end another thread begins to record a verdict: it must come later.

    Raises `AssertionError` where the verdict is recorded before `decide` has stored what it decided.
    """
    before = len(ledger.histories(NEW.table, [NEW.key]).get(NEW.key, []))
    threads: list[threading.Thread] = []

    def allow() -> None:
        threads.append(threading.Thread(target=lambda: ledger.record_verdicts([NEW])))
        threads[0].start()
        threads[0].join(0.5)
        assert threads[0].is_alive()
        assert len(ledger.histories(NEW.table, [NEW.key]).get(NEW.key, [])) == before

    decide(allow)
    threads[0].join(200)
    assert len(ledger.histories(NEW.table, [NEW.key]).get(NEW.key, [])) == before + 1


def main(url: str, name: str, rounds: int) -> None:
    """Append one verdict on each of three partitions per round, through a ledger opened anew."""
    for number in range(rounds):
        Ledger(url).record_verdicts(
            [
                NewVerdict(
                    table="datasets/flights",
                    key=key,
                    content_digest=f"{name}-{number}",
                    contract_digest="rules",
                    status="passed",
                    rows=number,
                    body_json="{}",
                    run_id=name,
                    branch="main",
                )
                for key in ("2013-01-01", "2013-01-02", f"{name}-only")
            ]
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
