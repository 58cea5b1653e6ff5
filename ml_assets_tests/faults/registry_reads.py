"""Reads of versions by several processes while stages change and the servers behind them are killed.

Here: readers, the process that decides, the kills, and the check of each answer against the ledger's rows. Not here:
the test (`servers/test_release_reads`) and the long measurement (`benchmarks/claims/servers/registry_reads`).
"""

import json
import os
import random
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from ml_assets.context import Context
from ml_assets.context.views import StaleAnswer
from ml_assets.model.release.known_versions import (
    NumberReader,
    StageReader,
    number_reader_of,
    stage_reader_of,
)
from ml_assets.model.release.promotion import promote
from ml_assets.model.release.releases import NotPromotable, registry_of, releases_of
from ml_assets.model.release.rollback import rollback
from ml_assets.model.release.standing import BundleStandings
from ml_assets_tests.faults.child_processes import Child, finish, forkserver, start
from resources.ledger import LedgerError, Person, Promotion
from resources.platform import Platform
from resources.settings import Settings
from resources.tracking.mlflow_client import TrackerError

SERVERS = ("postgresql", "mlflow")
LOADS_EACH = 10
"""One of so many reads is `load_model` with connections of its own, as of a process that just started."""
_CLIENT_PATIENCE = 5.0


@dataclass(kw_only=True)
class Outcome:
    """Counts of all reads."""

    kinds: Counter[str] = field(default_factory=Counter[str])
    """Reads by question: `stages`, `number`, `load`."""
    answered: int = 0
    stale: int = 0
    """Answers that were marked as the last ones, among `answered`."""
    refused: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])
    oldest_seconds: float = 0.0
    """Largest age that a stale answer declared."""
    seconds: list[float] = field(default_factory=list[float])
    """Time of each read."""
    decided: int = 0
    """Changes of stages during the reads."""
    kills: Counter[str] = field(default_factory=Counter[str])


def read_while_killed(
    model: str,
    settings: Settings,
    environment: Mapping[str, str],
    folder: Path,
    *,
    reads: int,
    clients: int,
    seconds: float,
    kills: int,
    kill: Callable[[str], object],
    restart: Callable[[str], object],
    down_seconds: tuple[float, float],
    seed: int = 1,
) -> Outcome:
    """Run `clients` processes with `reads` reads in all over `seconds`, and kill the servers `kills` times in turn.

    The model has at least three registered versions, all of which were in production before. `environment` gives
    another process S3's credentials.
    """
    folder.mkdir(parents=True)
    draw, context, outcome = random.Random(seed), forkserver(__name__, "mlflow.tracking"), Outcome()
    plain = {**environment}
    readers = [
        start(
            context,
            folder / f"reader-{one}.txt",
            _read,
            model,
            settings,
            plain,
            folder,
            one,
            reads // clients,
            seconds,
        )
        for one in range(clients)
    ]
    ready = [folder / f"reader-{one}.ready" for one in range(clients)]
    decider = start(context, folder / "decider.txt", _decide, model, settings, plain, folder, seed)
    _wait_for([*ready, folder / "decider.ready"], [*readers, decider])
    (folder / "go").touch()
    begun = time.monotonic()
    for number in range(kills):
        at = begun + seconds * (number + draw.uniform(0.2, 0.5)) / kills
        time.sleep(max(0.0, at - time.monotonic()))
        name = SERVERS[number % len(SERVERS)]
        kill(name)
        outcome.kills[name] += 1
        time.sleep(draw.uniform(*down_seconds))
        restart(name)
    finish(*readers, seconds=seconds * 5 + 300)
    (folder / "over").touch()
    finish(decider, seconds=300)
    _judge(outcome, model, settings, folder, clients)
    return outcome


def _wait_for(paths: Sequence[Path], children: Sequence[Child]) -> None:
    while not all(path.exists() for path in paths):
        for child in children:
            assert child.process.is_alive(), child.said()
        time.sleep(0.02)


def _read(
    model: str,
    settings: Settings,
    environment: dict[str, str],
    folder: Path,
    client: int,
    reads: int,
    seconds: float,
) -> None:
    """Be a client: read at a steady pace, and write down each answer or error."""
    os.environ.update(environment)
    platform, draw = Platform(settings, _CLIENT_PATIENCE), random.Random(client)
    stages, numbers = stage_reader_of(platform), number_reader_of(platform)
    ask = partial(_ask, model, settings, stages, numbers)
    ask("stages", 0)  # a first answer before the first kill, as of a client that works
    for number in (1, 2, 3):
        ask("number", number)
    (folder / f"reader-{client}.ready").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    begun = time.monotonic()
    with (folder / f"reader-{client}.jsonl").open("w") as log:
        for at in range(reads):
            time.sleep(max(0.0, begun + seconds * at / reads - time.monotonic()))
            kind = "load" if at % LOADS_EACH == 0 else draw.choice(("stages", "stages", "stages", "number"))
            before, began = time.monotonic(), datetime.now(UTC)
            try:
                said = ask(kind, draw.choice((1, 2, 3)))
            except Exception as error:  # each failed read is counted, whatever its type
                said = {"error": f"{type(error).__name__}: {error}"}
            said |= {"kind": kind, "began": began.isoformat(), "seconds": time.monotonic() - before}
            log.write(json.dumps(said) + "\n")


def _ask(
    model: str, settings: Settings, stages: StageReader, numbers: NumberReader, kind: str, number: int
) -> dict[str, Any]:
    match kind:
        case "stages":
            answer = stages.stages(model)
            return json.loads(answer.model_dump_json()) | {"stale": answer.stale}
        case "number":
            known = numbers.bundle(model, number)
            return json.loads(known.model_dump_json()) | {"stale": known.stale, "number": number}
        case _:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", StaleAnswer)
                served = Context.open(settings).load_model(f"{model}@production")
            stale = [str(one.message) for one in said if one.category is StaleAnswer]
            return {"bundle_digest": served.folder.name, "stale": "; ".join(stale)}


def _decide(model: str, settings: Settings, environment: dict[str, str], folder: Path, seed: int) -> None:
    """Be the persons who decide: promotions, rollbacks and canaries, each second, until the readers have ended."""
    os.environ.update(environment)
    platform, draw = Platform(settings, _CLIENT_PATIENCE), random.Random(seed)
    releases, log = releases_of(platform), platform.ledger.models
    registry_of(platform).versions(model)
    (folder / "decider.ready").touch()
    by = {"by": Person.unchecked("ada"), "reason": "for the readers"}
    with (folder / "decided.jsonl").open("w") as told:
        while not (folder / "over").exists():
            word = draw.choice(("promote", "promote", "rollback", "canary"))
            try:
                if word == "rollback":
                    place = rollback(releases, model, **by).place
                elif word == "promote":
                    place = promote(releases, model, draw.choice((1, 2, 3)), **by).place
                else:  # as `promote` records it for a new version; these were in production before
                    row = draw.choice([one for one in log.promotions(model) if one.returns_to is None])
                    place = log.promote(
                        model, row.version, "canary", bundle_digest=row.bundle_digest,
                        evaluation_digest=row.evaluation_digest, **by,
                    ).place  # fmt: skip
                told.write(json.dumps({"place": place, "at": datetime.now(UTC).isoformat()}) + "\n")
            except (LedgerError, TrackerError, NotPromotable) as error:
                told.write(json.dumps({"refused": str(error)}) + "\n")
            told.flush()
            time.sleep(draw.uniform(0.2, 1.5))


def _judge(outcome: Outcome, model: str, settings: Settings, folder: Path, clients: int) -> None:
    """Compare each answer with the rows of the ledger; `outcome` gets the counts."""
    platform = Platform(settings)
    platform.ledger.models.verify()
    changes = platform.ledger.models.stage_changes(model)
    numbers = {str(one.number): one.bundle_digest for one in registry_of(platform).versions(model)}
    told = [json.loads(line) for line in (folder / "decided.jsonl").read_text().splitlines()]
    known_by: dict[int, datetime] = {}
    for one in told:
        if "place" in one:  # the first time: promoting the version in production returns its promotion again
            known_by.setdefault(one["place"], datetime.fromisoformat(one["at"]))
    outcome.decided = len(known_by)
    states: dict[int, tuple[str | None, str | None]] = {}
    lasted: dict[int, tuple[datetime, datetime]] = {}
    for at, change in enumerate(changes):
        standings = BundleStandings.of_stages([_as_of(one, change.place) for one in changes[: at + 1]])
        states[change.place] = (_digest(standings.in_production), _digest(standings.canary))
        # Visible at the latest when its writer was told; unknown if the server was killed in the middle.
        following = changes[at + 1] if at + 1 < len(changes) else None
        end = datetime.max.replace(tzinfo=UTC)
        if following is not None:
            end = known_by.get(following.place, following.at + timedelta(seconds=_CLIENT_PATIENCE * 2))
        lasted[change.place] = (change.at, end)
    for client in range(clients):
        newest = 0
        for line in (folder / f"reader-{client}.jsonl").read_text().splitlines():
            said = json.loads(line)
            outcome.kinds[said["kind"]] += 1
            outcome.seconds.append(said["seconds"])
            if "error" in said:
                outcome.refused.append(f"{said['kind']}: {said['error']}")
                continue
            outcome.answered += 1
            outcome.stale += bool(said["stale"])
            if why := _why_wrong(said, states, lasted, numbers, newest):
                outcome.wrong.append(f"reader {client}: {why}: {line}")
            newest = max(newest, said.get("place", 0))
            if said["stale"] and "read_at" in said:
                age = datetime.fromisoformat(said["began"]) - datetime.fromisoformat(said["read_at"])
                outcome.oldest_seconds = max(outcome.oldest_seconds, age.total_seconds())


def _why_wrong(
    said: Mapping[str, Any],
    states: Mapping[int, tuple[str | None, str | None]],
    lasted: Mapping[int, tuple[datetime, datetime]],
    numbers: Mapping[str, str],
    newest: int,
) -> str:
    """Return the reason why an answer is wrong; empty for a right one."""
    began = datetime.fromisoformat(said["began"])
    if said["kind"] == "number":
        return "" if said["bundle_digest"] == numbers[str(said["number"])] else "another bundle"
    if said["kind"] == "load":
        end = began + timedelta(seconds=said["seconds"])
        said_at = re.search(r"ago, at (\S+ \S+) UTC", said["stale"])
        since = datetime.fromisoformat(f"{said_at[1]}+00:00") if said_at else began
        held = [
            place
            for place, (first, last) in lasted.items()
            if first <= end and last >= since and states[place][0] == said["bundle_digest"]
        ]
        return "" if held else "not in production at that time"
    place, read_at = said["place"], datetime.fromisoformat(said["read_at"])
    shown = tuple(one and one["bundle_digest"] for one in (said["production"], said["canary"]))
    if shown != states.get(place):
        return f"the ledger has {states.get(place)} at row {place}"
    if place < newest:
        return f"row {newest} was seen before"
    if read_at > began and said["stale"]:
        return "it says a later time than its own"
    first, last = lasted[place]
    ended = datetime.fromisoformat(said["got_at"])
    return "" if first <= ended and last >= read_at else "it was not true at the time that it says"


def _as_of(change: Any, place: int) -> Any:
    """Return a change as it stood at `place`: a promotion that a later demotion ended had not ended."""
    if isinstance(change, Promotion) and change.demotion is not None and change.demotion.place > place:
        return replace(change, demotion=None)
    return change


def _digest(promotion: Promotion | None) -> str | None:
    return None if promotion is None else promotion.bundle_digest


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def in_words(outcome: Outcome) -> str:
    """Return the counts in words."""
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(outcome.kinds.items()))
    return (
        f"{sum(outcome.kinds.values()):,} reads ({kinds}), {outcome.answered:,} answered, {outcome.stale:,} of them by "
        f"the last answer, {len(outcome.refused)} refused, {len(outcome.wrong)} wrong"
    )
