"""Rollback, archival and history: the way back is always open, and the ledger says what happened."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.model.release.bundle_store import Bundle, BundleStore
from ml_assets.model.release.history import lines, state_at
from ml_assets.model.release.promotion import newest_data, promote, register
from ml_assets.model.release.registry import Registry
from ml_assets.model.release.releases import NotPromotable, Releases
from ml_assets.model.release.rollback import archive, demote, replaced_by, rollback
from ml_assets.model.release.standing import PRODUCTION, BundleStandings
from ml_assets_tests.release.conftest import Evaluate, Meanwhile, refuses
from ml_assets_tests.tables.orders_table import OrdersTable, keys, reject
from resources.ledger import EvaluationRow, Ledger, Person, Promotion


@pytest.fixture
def three_versions(
    releases: Releases,
    evaluate: Evaluate,
    run_id: str,
    two_versions: tuple[Bundle, Bundle],
    variant: Callable[..., Bundle],
) -> list[Bundle]:
    """Versions 1, 2 and 3 were promoted one after the other."""
    third = variant(fingerprint="3" * 64)
    evaluate(third)
    register(releases, third, run_id=run_id, links={})
    found = [*two_versions, third]
    for number, bundle in enumerate(found, start=1):
        evaluate(bundle, told="beside the version before")
        promote(releases, "small", number, by=Person.unchecked("ada"), reason="better")
    return found


def test_rollbacks_go_back_version_by_version(
    releases: Releases, registry: Registry, three_versions: list[Bundle]
) -> None:
    for number in (2, 1):
        back = rollback(releases, "small", by=Person.unchecked("bob"), reason="slow")
        assert (back.version, back.author, back.reason) == (str(number), "bob", "slow")
        assert registry.aliased("small", PRODUCTION) == number
    assert back.bundle_digest == three_versions[0].digest
    with refuses(NotPromotable, "history", "before version 1"):
        rollback(releases, "small", by=Person.unchecked("bob"), reason="slow")
    assert (
        promote(releases, "small", 3, by=Person.unchecked("ada"), reason="it was the network").version == "3"
    )


def test_neither_evaluation_nor_rejected_day_blocks_a_rollback(
    releases: Releases, orders: OrdersTable, evaluate: Evaluate, three_versions: list[Bundle]
) -> None:
    evaluate(three_versions[1], "rejected", told="on rows that version 3 has seen")
    reject(orders, keys(3)[1])
    back = rollback(releases, "small", by=Person.unchecked("bob"), reason="3 is slow")
    assert back.version == "2"
    newest = releases.standings("small").of(back.bundle_digest).newest
    assert newest is not None
    assert (newest.status, newest.evaluation_digest != back.evaluation_digest) == ("rejected", True)


@pytest.mark.usefixtures("two_versions")
def test_who_demotes_second_is_told_who_was_first(releases: Releases) -> None:
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="the first")
    seen = releases.in_production("small")
    demote(releases, "small", by=Person.unchecked("cyd"), reason="wrong prices")
    with refuses(NotPromotable, "role", "no version of small", "cyd demoted version 1 at 20"):
        demote(releases, "small", by=Person.unchecked("bob"), reason="slow")
    ended = demote(
        releases, "small", by=Person.unchecked("bob"), reason="slow", seen=seen
    ).demotion  # began before
    assert ended is not None
    assert (ended.author, ended.reason) == ("cyd", "wrong prices")


@pytest.mark.usefixtures("two_versions")
def test_a_rollback_with_no_version_before_names_the_way(releases: Releases) -> None:
    """Also after a demotion: then no version is in production that somebody could demote."""
    promote(releases, "small", 1, by=Person.unchecked("ada"), reason="the first")
    with refuses(NotPromotable, "history", "before version 1", "ml-assets demote small"):
        rollback(releases, "small", by=Person.unchecked("bob"), reason="slow")
    demote(releases, "small", by=Person.unchecked("ada"), reason="wrong prices")
    with refuses(NotPromotable, "history", "demoted version 1", "ml-assets promote small 1"):
        rollback(releases, "small", by=Person.unchecked("bob"), reason="something must serve")
    promote(releases, "small", 1, by=Person.unchecked("bob"), reason="something must serve")


@pytest.mark.usefixtures("three_versions")
def test_rollback_after_a_demotion_skips_the_demoted_version(releases: Releases) -> None:
    demote(releases, "small", by=Person.unchecked("ada"), reason="wrong prices")
    assert (
        rollback(releases, "small", by=Person.unchecked("bob"), reason="something must serve").version == "2"
    )


@pytest.mark.usefixtures("three_versions")
def test_of_two_rollbacks_at_once_one_is_refused(
    orders: OrdersTable, registry: Registry, store: BundleStore, releases: Releases
) -> None:
    """Otherwise two persons who see the same fault go back by two versions."""
    slow = Meanwhile(
        store, lambda _: rollback(releases, "small", by=Person.unchecked("bob"), reason="3 is broken")
    )
    with refuses(NotPromotable, "meanwhile", "bob rolled back to version 2 at 20"):
        rollback(
            Releases(orders.ledger, registry, slow, orders.store),
            "small",
            by=Person.unchecked("eve"),
            reason="broken",
        )
    now = releases.in_production("small")
    assert now is not None
    assert (now.version, now.author) == ("2", "bob")
    replaced = replaced_by(releases, now)
    assert replaced is not None
    assert replaced.version == "3"


@pytest.mark.usefixtures("three_versions")
def test_a_demotion_during_a_rollback_does_not_stop_it(
    orders: OrdersTable, registry: Registry, store: BundleStore, releases: Releases
) -> None:
    slow = Meanwhile(
        store, lambda _: demote(releases, "small", by=Person.unchecked("bob"), reason="3 is broken")
    )
    back = rollback(
        Releases(orders.ledger, registry, slow, orders.store),
        "small",
        by=Person.unchecked("eve"),
        reason="slow",
    )
    assert (back.version, replaced_by(releases, back)) == ("2", None)


@pytest.mark.usefixtures("three_versions")
def test_a_demotion_never_ends_a_promotion_that_came_meanwhile(
    releases: Releases, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between look-up and transaction, another person promotes: that version stays."""
    log, began = ledger.models, False
    turn = log._turn  # pyright: ignore[reportPrivateUsage]

    def late(model: str) -> AbstractContextManager[None]:
        nonlocal began
        if not began:
            began = True
            rollback(releases, "small", by=Person.unchecked("bob"), reason="3 is slow")
        return turn(model)

    monkeypatch.setattr(log, "_turn", late)
    with refuses(NotPromotable, "meanwhile", "version 3 of small", "bob rolled back to version 2"):
        demote(releases, "small", by=Person.unchecked("ada"), reason="wrong labels")
    now = releases.in_production("small")
    assert now is not None
    assert now.version == "2"


@pytest.mark.usefixtures("three_versions")
def test_rollback_never_returns_to_a_version_that_a_person_demoted(
    releases: Releases, evaluate: Evaluate, three_versions: list[Bundle]
) -> None:
    rollback(releases, "small", by=Person.unchecked("ada"), reason="slow")
    demote(releases, "small", by=Person.unchecked("ada"), reason="2 has wrong labels")
    evaluate(three_versions[2], told="beside nothing")
    promote(releases, "small", 3, by=Person.unchecked("ada"), reason="right labels")
    assert rollback(releases, "small", by=Person.unchecked("bob"), reason="slow").version == "1"
    with refuses(NotPromotable, "history", "neither archived nor demoted"):
        rollback(releases, "small", by=Person.unchecked("bob"), reason="slow")
    for number in (2, 3):
        promote(releases, "small", number, by=Person.unchecked("ada"), reason="its labels were right")
    assert rollback(releases, "small", by=Person.unchecked("bob"), reason="slow").version == "2"


@pytest.mark.usefixtures("three_versions")
def test_an_archived_version_never_returns(releases: Releases, registry: Registry) -> None:
    with refuses(NotPromotable, "production", r"small 3 \(1\.0\.2\) is in production"):
        archive(releases, "small", 3, by=Person.unchecked("ada"), reason="recalled")
    archival = archive(releases, "small", 2, by=Person.unchecked("ada"), reason="trained on private data")
    assert archive(releases, "small", 2, by=Person.unchecked("eve"), reason="me too") == archival
    assert registry.version("small", 2).tags["stage"] == "archived"
    with refuses(NotPromotable, "archived", "small 2", "by ada: trained on private data"):
        promote(releases, "small", 2, by=Person.unchecked("eve"), reason="mine")
    assert rollback(releases, "small", by=Person.unchecked("bob"), reason="slow").version == "1"
    archive(releases, "small", 3, by=Person.unchecked("ada"), reason="slow")
    demote(releases, "small", by=Person.unchecked("ada"), reason="wrong prices")
    newest = newest_data(releases, "small")
    assert newest is None, "1 was in production and has to be named; 2 and 3 are archived"


@pytest.mark.usefixtures("three_versions")
def test_a_rollback_and_an_archival_need_a_reason(releases: Releases) -> None:
    with refuses(NotPromotable, "reason", "rolling back small"):
        rollback(releases, "small", by=Person.unchecked("bob"), reason=" ")
    with refuses(NotPromotable, "history", "no version of other", "ever in production"):
        rollback(releases, "other", by=Person.unchecked("bob"), reason="slow")
    with refuses(NotPromotable, "reason", "archiving small 1"):
        archive(releases, "small", 1, by=Person.unchecked("bob"), reason="")


def test_rollback_needs_no_tracker(
    releases: Releases,
    orders: OrdersTable,
    store: BundleStore,
    three_versions: list[Bundle],
    tmp_path: Path,
) -> None:
    (tmp_path / "a file").touch()
    nowhere = Registry(f"sqlite:///{tmp_path / 'a file' / 'mlflow.db'}", store.address)
    away = Releases(orders.ledger, nowhere, store, orders.store)
    assert rollback(away, "small", by=Person.unchecked("bob"), reason="slow").version == "2"
    now = releases.in_production("small")
    assert now is not None
    assert now.bundle_digest == three_versions[1].digest


@pytest.mark.usefixtures("three_versions")
def test_history_names_every_decision_with_author_and_reason(releases: Releases) -> None:
    rollback(releases, "small", by=Person.unchecked("bob"), reason="3 is slow")
    archive(releases, "small", 3, by=Person.unchecked("cyd"), reason="recalled")
    demote(releases, "small", by=Person.unchecked("dan"), reason="wrong prices")
    decisions = releases.log.decisions("small")
    said = [line[25:] for line in lines(decisions) if not line.startswith(" ")]
    assert said[0].startswith("evaluated   version 1 (1.0.0) on 2013-12-31, by ada: Blessed: ")
    assert said[1].startswith("registered  1.0.0, bundle ")
    assert "evaluated   version 2 (1.0.1) on 2013-12-31, beside version 1 (1.0.0), by ada: " in "\n".join(
        said
    )
    assert said[-3:] == [
        "rolled back to version 2 (1.0.1), by bob: 3 is slow",
        "archived    version 3 (1.0.2), by cyd: recalled",
        "demoted     version 2 (1.0.1), by dan: wrong prices",
    ]
    promoted = [one for one in decisions if isinstance(one, Promotion)]
    second = list(state_at(decisions, promoted[1].at))
    assert "version 2 (1.0.1) was in production, since" in second[0]
    assert second[1] == "    promoted version 2 (1.0.1), by ada: better"
    assert second[2].startswith("    on evaluation ")
    before = promoted[0].at - timedelta(seconds=1)
    assert next(state_at(decisions, before)).endswith("no version had been in production.")
    evaluated = next(one for one in decisions if isinstance(one, EvaluationRow))
    forged = replace(evaluated, summary="fine\n2026-11-23 09:00:00 UTC  approved \x1b[2K")
    assert len(list(lines([forged]))) == len(list(lines([evaluated]))) == 2
    assert r"fine\n2026-11-23 09:00:00 UTC  approved \x1b[2K" in next(lines([forged]))
    last = list(state_at(decisions, datetime.now(UTC)))
    assert "no version was in production, since" in last[0]
    assert last[1] == "    demoted version 2 (1.0.1), by dan: wrong prices"


Command = tuple[str, int]
commands = st.lists(
    st.tuples(
        st.sampled_from(["promote", "promote", "rollback", "rollback", "demote", "archive"]),
        st.integers(1, 3),
    ),
    max_size=14,
)


@settings(max_examples=40, deadline=None)
@given(commands)
def test_rollback_agrees_with_a_stack_of_versions(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[Command]
) -> None:
    """The stack holds what a rollback can return to, its last entry is the newest promotion."""
    log = Ledger(f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db").models
    stack: list[str] = []
    archived: set[str] = set()
    demoted: set[str] = set()
    serves: str | None = None

    def promote(version: str, returns_to: int | None = None) -> None:
        facts = {
            "by": Person.unchecked("ada"),
            "reason": "r",
            "bundle_digest": f"b{version}",
            "evaluation_digest": "e",
        }
        log.promote("m", version, PRODUCTION, returns_to=returns_to, **facts)

    for command, number in steps:
        version = str(number)
        if command == "promote" and version not in archived and version != serves:
            promote(version)
            demoted.discard(version)
            stack.append(version)
            serves = version
        elif command == "archive" and version != serves:
            log.archive("m", version, by=Person.unchecked("ada"), reason="r", bundle_digest=f"b{version}")
            archived.add(version)
        elif command == "demote" and (held := log.in_production("m")) is not None:
            log.demote(held, by=Person.unchecked("ada"), reason="r")
            demoted.add(held.version)
            serves = None
        elif command == "rollback":
            left, rest = archived | demoted | set(stack[-1:]), list(stack)
            while rest and rest[-1] in left:
                rest.pop()
            target = BundleStandings.read(log, "m").rollback_target
            assert (target.version if target else None) == (rest[-1] if rest else None)
            if target is not None:
                promote(target.version, target.place)
                stack, serves = rest, target.version
        held = log.in_production("m")
        assert (held.version if held else None) == serves
    log.verify()
