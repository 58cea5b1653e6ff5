"""Decisions about one model by many processes at once, some of which are killed in the middle.

Here: the processes, and the rules that their history has to follow, told without the platform's own code. Not here:
the tests (`components/end_to_end/test_decisions_at_once`, `servers/test_release_decisions`).
"""

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from ml_assets.model.release.bundle_store import BundleStore
from ml_assets.model.release.promotion import promote
from ml_assets.model.release.registry import Registry
from ml_assets.model.release.releases import NotPromotable, NotReviewable, Releases
from ml_assets.model.release.reviews import review
from ml_assets.model.release.rollback import archive, demote, rollback
from ml_assets.model.release.rules import Rules
from ml_assets.model.release.standing import CANARY, PRODUCTION
from ml_assets_tests.faults.child_processes import forkserver
from ml_assets_tests.release.recorded_evaluations import record_evaluation
from resources.artifacts import FolderArtifacts
from resources.lake.local import LocalStore
from resources.ledger import (
    Archival,
    Decision,
    Demotion,
    EvaluationRow,
    Ledger,
    LedgerBusy,
    Person,
    Promotion,
    Review,
    TrainedOn,
)
from resources.tracking.mlflow_client import TrackerError, open_client

MODEL = "small"
APPROVED = Rules.model_validate({"approval": {"by": ["bob", "cyd"]}})
BY_CANARY = Rules.model_validate(
    {"approval": {"by": ["bob", "cyd"]}, "canary": {"share": 0.5, "by": ["carrier"]}}
)
"""A version is canary first. Without a time for it, its next promotion puts it into production."""
WORDS = ("promote", "promote", "rollback", "approve", "approve", "evaluate", "demote", "archive", "reject")
"""Commands to draw from."""
AT_ONCE = 8
"""Processes that are alive at the same time."""


@dataclass(frozen=True)
class Place:
    """Addresses of one platform."""

    lake: Path
    ledger: str
    tracker: str
    artifacts: Path
    window: TrainedOn
    rules: Rules = APPROVED

    def releases(self) -> Releases:
        """Open its registrations and promotions, as each command does."""
        return Releases(Ledger(self.ledger), self.registry(), self.store(), LocalStore(self.lake))

    def registry(self) -> Registry:
        return Registry(self.tracker, self.store().address)

    def store(self) -> BundleStore:
        return BundleStore(FolderArtifacts(self.artifacts))


def decide(place: Place, word: str, number: int, told: str, said: Path) -> None:
    """Run one command; write its outcome to `said` once it returned."""
    releases, by = place.releases(), {"by": Person.unchecked("ada"), "reason": told}
    outcome: object = "refused"
    try:
        match word:
            case "promote":
                outcome = promote(releases, MODEL, number, rules=place.rules, **by).place
            case "rollback":
                outcome = rollback(releases, MODEL, **by).place
            case "demote":
                role = random.choice([PRODUCTION, CANARY])
                ended = demote(releases, MODEL, role=role, **by).demotion
                outcome = ended.place if ended else None
            case "archive":
                outcome = archive(releases, MODEL, number, **by).place
            case "evaluate":
                bundle = place.store().open(place.registry().version(MODEL, number).bundle_digest)
                new = record_evaluation(Ledger(place.ledger), bundle, trained_on=place.window, told=told)
                outcome = new.place
            case _:
                approves = word == "approve"
                by = {"by": Person.unchecked(random.choice(["bob", "cyd"])), "reason": told}
                outcome = review(releases, MODEL, number, approves=approves, rules=place.rules, **by).place
    except (NotPromotable, NotReviewable, LedgerBusy):
        pass
    except TrackerError:
        outcome = "decided, not shown"
    said.write_text(json.dumps(outcome))


def decide_at_once(place: Place, folder: Path, versions: int, commands: int, seed: int) -> Counter[str]:
    """Run `commands` processes, `AT_ONCE` at a time, and kill every third at a random moment.

    Return the number of each outcome. Raise `AssertionError` if a process failed by itself.
    """
    draw, context = random.Random(seed), forkserver(__name__, "mlflow.tracking", "sqlalchemy.dialects.sqlite")
    open_client(place.tracker)
    outcomes = Counter[str]()
    alive: list[tuple[ForkServerProcess, float, Path, str]] = []
    started = 0
    typical = 0.5
    while started < commands or alive:
        while started < commands and len(alive) < AT_ONCE:
            word, number = draw.choice(WORDS), draw.randint(1, versions)
            if word == "archive" and draw.random() < 0.8:
                word = "promote"
            said = folder / f"{started}.json"
            process = context.Process(target=decide, args=(place, word, number, f"{seed}/{started}", said))
            process.start()
            dies = draw.uniform(0, 2 * typical) if started % 3 == 0 else float("inf")
            alive.append((process, time.monotonic() + dies, said, word))
            started += 1
        for one in list(alive):
            process, dies, said, word = one
            if process.is_alive() and time.monotonic() > dies and process.pid is not None:
                process.kill()
            if process.is_alive():
                continue
            process.join()
            alive.remove(one)
            killed = process.exitcode == -signal.SIGKILL
            assert killed or process.exitcode == 0, f"{word} ended with {process.exitcode}"
            outcomes["killed" if killed else word] += 1
        time.sleep(0.005)
    return outcomes


def acknowledged(folder: Path) -> set[int]:
    """Return the places of all decisions that a process reported."""
    said: list[object] = []
    for path in folder.glob("*.json"):
        with suppress(json.JSONDecodeError):  # killed while it wrote
            said.append(json.loads(path.read_text()))
    return {one for one in said if isinstance(one, int)}


def require_lawful(decisions: Sequence[Decision], rules: Rules) -> list[tuple[datetime, str | None]]:
    """Check each decision against those before it; return the bundle in production from each moment on.

    A first promotion needs an approval of the newest evaluation, which compared it with the version in production, and
    by rules with a canary it is that of the canary. One version at a time is the canary. An archived version never
    returns. A demotion ends the promotion of the moment. Times never go back.
    """
    held: Promotion | None = None
    canary: Promotion | None = None
    was, archived = set[str](), set[str]()
    newest: dict[str, EvaluationRow] = {}
    approved: dict[str, bool] = {}
    moments: list[tuple[datetime, str | None]] = []
    assert [one.at for one in decisions] == sorted(one.at for one in decisions)
    for one in decisions:
        match one:
            case EvaluationRow():
                newest[one.bundle_digest] = one
            case Review():
                assert approved.get(one.evaluation_digest) is not False, "approved after a rejection"
                approved[one.evaluation_digest] = one.approves
            case Promotion(alias=alias) if alias == CANARY:
                assert rules.canary is not None
                assert one.bundle_digest not in archived | was
                behind = newest[one.bundle_digest]
                assert (behind.evaluation_digest, behind.status) == (one.evaluation_digest, "blessed")
                assert approved.get(one.evaluation_digest) is not False, "a canary that a reviewer rejected"
                assert held is None or behind.champion_digest == held.bundle_digest
                canary = one
            case Promotion():
                assert one.bundle_digest not in archived
                if rules.canary is not None and one.bundle_digest not in was:
                    assert canary is not None
                    assert canary.bundle_digest == one.bundle_digest, "no version skips the canary"
                if canary is not None and canary.bundle_digest == one.bundle_digest:
                    canary = None
                if one.returns_to is None:
                    assert held is None or held.bundle_digest != one.bundle_digest
                if one.bundle_digest not in was:
                    behind = newest[one.bundle_digest]
                    assert behind.evaluation_digest == one.evaluation_digest
                    assert approved.get(one.evaluation_digest) is True
                    assert held is None or behind.champion_digest == held.bundle_digest
                held = one
                was.add(one.bundle_digest)
            case Demotion() if canary is not None and one.promotion == canary.place:
                canary = None
            case Demotion():
                assert held is not None
                assert one.promotion == held.place
                held = None
            case Archival():
                assert held is None or held.bundle_digest != one.bundle_digest
                archived.add(one.bundle_digest)
                if canary is not None and canary.bundle_digest == one.bundle_digest:
                    canary = None
            case _:
                pass
        moments.append((one.at, held.bundle_digest if held else None))
    return moments


def in_production_at(
    moments: Iterable[tuple[datetime, str | None]], tell: Callable[[datetime], str | None]
) -> None:
    """Check that `tell` names what was in production at each moment: one bundle, or none."""
    last = dict(moments)  # of decisions at one moment, the last counts
    assert {at: tell(at) for at in last} == last
