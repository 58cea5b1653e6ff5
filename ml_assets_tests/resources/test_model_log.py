"""Decisions about models: the newest evaluation is found, a demotion ends a promotion and only that one."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ml_assets_tests.resources.ledger_writer import EVALUATION, assert_decisions_hold_verdicts_back
from resources.ledger import ClockRefused, Ledger, LedgerError, ModelLog, Person, Promotion, decision_rows

START = datetime(2014, 1, 1, tzinfo=UTC)


@pytest.fixture
def log(tmp_path: Path) -> ModelLog:
    return Ledger(f"sqlite:///{tmp_path}/ledger.db").models


def promote(log: ModelLog, version: str, day: int) -> Promotion:
    facts = {
        "by": Person.unchecked("ada"),
        "reason": "r",
        "bundle_digest": f"b{version}",
        "evaluation_digest": "e",
    }
    return log.promote("m", version, "production", at=START + timedelta(days=day), **facts)


def test_the_newest_evaluation_of_a_bundle_is_found(log: ModelLog) -> None:
    assert log.newest_evaluation("m", "b") is None
    first = log.record_evaluation(EVALUATION)
    log.record_evaluation(replace(EVALUATION, bundle_digest="other", evaluation_digest="o"))
    rejected = log.record_evaluation(replace(EVALUATION, evaluation_digest="f", status="rejected"))
    assert log.newest_evaluation("m", "b") == rejected
    assert log.newest_evaluation("another model", "b") is None
    again = log.record_evaluation(EVALUATION)
    assert again.place > rejected.place
    assert log.newest_evaluation("m", "b") == again != first


def test_a_retried_step_records_its_evaluation_once(log: ModelLog) -> None:
    first = log.record_evaluation(EVALUATION)
    assert log.record_evaluation(EVALUATION) == first
    assert log.evaluations("m") == [first]


def test_a_bundle_keeps_its_semantic_version(log: ModelLog) -> None:
    def named(bundle: str, choice: str) -> str:
        return log.name_version(
            "m", bundle, schema_digest="s", recipe_digest="r", choose=lambda known: choice
        )

    assert [named("b1", "1.0.0"), named("b2", "1.0.1"), named("b1", "1.0.2")] == ["1.0.0", "1.0.1", "1.0.0"]
    with pytest.raises(LedgerError, match=r"m 1\.0\.1 .*another bundle"):
        named("b3", "1.0.1")
    assert [one.bundle_digest for one in log.names("m")] == ["b1", "b2"]


def test_a_demotion_leaves_the_role_to_nobody_until_the_next_promotion(log: ModelLog) -> None:
    first = promote(log, "1", day=0)
    ended = log.demote(first, by=Person.unchecked("bob"), reason="wrong prices", at=START + timedelta(days=1))
    assert log.demote(first, by=Person.unchecked("eve"), reason="me too") == ended
    second = promote(log, "2", day=2)
    held = [log.in_production("m", at=START + timedelta(days=day)) for day in (-1, 0, 0.5, 1, 1.5, 2)]
    assert [one and one.version for one in held] == [None, "1", "1", None, None, "2"]
    assert log.in_production("m") == second
    assert [one.demotion for one in log.promotions("m")] == [ended, None]


def test_demoting_what_was_replaced_meanwhile_does_not_end_its_successor(log: ModelLog) -> None:
    first, second = promote(log, "1", day=0), promote(log, "2", day=1)
    log.demote(first, by=Person.unchecked("bob"), reason="too late")
    assert log.in_production("m") == second


def test_no_verdict_is_recorded_during_a_promotion_or_registration(tmp_path: Path) -> None:
    assert_decisions_hold_verdicts_back(Ledger(f"sqlite:///{tmp_path}/ledger.db"))


def test_a_decision_that_waits_is_dated_when_it_is_recorded(log: ModelLog) -> None:
    """Otherwise `history --at` names a version that came into production later."""
    waited: list[datetime] = []
    facts = {"by": Person.unchecked("ada"), "reason": "r", "bundle_digest": "b1", "evaluation_digest": "e"}
    new = log.promote("m", "1", "production", allow=lambda: waited.append(datetime.now(UTC)), **facts)
    assert waited[0] <= new.at == log.promotions("m")[0].at


def ahead(patch: pytest.MonkeyPatch, by: timedelta, *clocks: str) -> None:
    """Set clocks of this host ahead."""
    for name in clocks:
        right = getattr(decision_rows, name)
        patch.setattr(decision_rows, name, lambda *given, right=right: right(*given) + by)


@pytest.mark.parametrize("by", [timedelta(hours=25), timedelta(days=400), -timedelta(days=1)])
def test_a_process_with_a_wrong_clock_dates_nothing(
    log: ModelLog, monkeypatch: pytest.MonkeyPatch, by: timedelta
) -> None:
    """Ahead by 25 hours, it would end a bake time of a day."""
    with monkeypatch.context() as patch:
        ahead(patch, by, "process_time")
        for write in (lambda: log.record_evaluation(EVALUATION), log.now):
            with pytest.raises(ClockRefused, match="clocks right") as refused:
                write()
            assert refused.value.dated == "process"
    assert log.head().place == 0
    with pytest.raises(ClockRefused) as refused:
        log.record_evaluation(EVALUATION, at=datetime.now(UTC) + timedelta(hours=25))
    assert refused.value.dated == "new row"


def test_a_row_that_was_dated_ahead_is_named_and_redated(
    log: ModelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Host and file system were 400 days ahead. The row cannot be changed, and would freeze the model's releases."""
    ada = Person.unchecked("ada")
    facts: dict[str, Any] = {"by": ada, "reason": "r", "bundle_digest": "b", "evaluation_digest": "e"}
    log.record_evaluation(EVALUATION)
    with monkeypatch.context() as patch:
        ahead(patch, timedelta(days=400), "process_time", "file_system_time")
        wrong = log.promote("m", "1", "canary", **facts)
    assert wrong.at > datetime.now(UTC) + timedelta(days=399)
    with pytest.raises(ClockRefused, match=r"row 2.*ledger redate m --reason") as refused:
        log.promote("m", "1", "production", **facts)
    assert refused.value.dated == "earlier row"
    row = log.redate("m", ada, reason="the clock was wrong")
    assert row.rows == (wrong.place,)
    assert log.promotions("m")[0].at == row.at
    new = log.promote("m", "1", "production", **facts)
    assert row.at <= new.at <= datetime.now(UTC)
    assert log.in_production("m", at=datetime.now(UTC)) == new
    with pytest.raises(LedgerError, match="nothing to redate"):
        log.redate("m", ada, reason="again")
    log.verify()


def test_a_clock_that_is_behind_does_not_reorder_decisions(log: ModelLog) -> None:
    ahead = log.promote(
        *("m", "1", "production"),
        by=Person.unchecked("ada"),
        reason="r",
        bundle_digest="b1",
        evaluation_digest="e",
        at=datetime.now(UTC) + timedelta(minutes=3),
    )
    ended = log.demote(ahead, by=Person.unchecked("bob"), reason="wrong prices")
    assert ended.at == ahead.at
    assert log.in_production("m", at=ahead.at) is None
