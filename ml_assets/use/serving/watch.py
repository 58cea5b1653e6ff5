"""Watch of the ledger: which versions a server answers with, the share of the canary, and when they change.

A thread reads the ledger. It loads a new version and replays its golden rows beside the old one; then one assignment
replaces the roles. Requests that began with the old version end with it. If the ledger or the store of bundles is away,
or a bundle does not load, the server keeps what it has and says so. If it starts without a ledger, it begins with the
last answer that this machine got. Not here: requests (`app`).
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from logging import getLogger
from typing import Any, Self

import polars as pl

from ml_assets.data.features.categories import category_text
from ml_assets.model.release.bundle_store import Bundle, BundleDamaged, BundleMissing, BundleStore
from ml_assets.model.release.known_versions import StageReader, Stages
from ml_assets.model.release.runtime import GOLDEN, GOLDEN_OUTPUT, BundleRefused, ServingModel
from resources.artifacts import ArtifactsError
from resources.ledger import LedgerError


@dataclass(frozen=True, kw_only=True)
class ServedVersion:
    """One version, loaded."""

    model: str
    number: int
    """MLflow's number."""
    since: datetime
    """Moment of the promotion that gave the role; of a shadow by number, the moment it was loaded."""
    bundle: Bundle
    runtime: ServingModel
    example: Mapping[str, Any]
    """First golden row."""
    categories: Sequence[tuple[str, pl.DataType, frozenset[str]]]
    """Each column with categories, its type in the feature table, and the categories of the training rows."""

    @classmethod
    def load(cls, model: str, number: int, since: datetime, bundle: Bundle) -> Self:
        """Load a bundle and replay its golden rows. Raises `BundleRefused`."""
        runtime = ServingModel.load(bundle.folder)
        golden = pl.read_parquet(bundle.folder / GOLDEN, n_rows=1).drop(GOLDEN_OUTPUT)
        return cls(
            model=model,
            number=number,
            since=since,
            bundle=bundle,
            runtime=runtime,
            example=golden.row(0, named=True),
            categories=[
                (one.name, golden.schema[one.name], frozenset(one.vocabulary))
                for one in bundle.facts.fitted.categorical
            ],
        )

    @property
    def digest(self) -> str:
        return self.bundle.digest

    def unknown_categories(self, row: Mapping[str, Any]) -> list[str]:
        """Return the columns of `row` whose category the model reads as unknown, because no training row had it.

        Null is not among them: the model was trained to read it. The model must have predicted `row` before.
        """
        found: list[str] = []
        for name, dtype, vocabulary in self.categories:
            value = row[name]
            if (
                value is not None
                and value not in vocabulary
                and category_text(value, dtype) not in vocabulary
            ):
                found.append(name)
        return found


@dataclass(frozen=True, kw_only=True)
class CanaryShare:
    """Share of entities that the canary answers (`release.canary` of the rules in force)."""

    share: float
    by: tuple[str, ...]
    """Columns of a raw row that name its entity."""

    def __str__(self) -> str:
        return f"a canary answers {100 * self.share:g} % of the entities ({', '.join(self.by)})"


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Roles of one model at one moment. A request reads them once, so it sees one consistent state."""

    production: ServedVersion | None = None
    canary: ServedVersion | None = None
    """Version that answers a share of the entities."""
    shadows: tuple[ServedVersion, ...] = ()
    """Versions whose predictions are only logged."""
    share: CanaryShare | None = None
    """None: a canary is only a shadow."""
    secret: bytes = field(default=b"", repr=False)
    """Secret of the assignment; empty without a share."""

    @property
    def versions(self) -> dict[str, ServedVersion]:
        """Role → version; further shadows are left out."""
        roles = {
            "production": self.production,
            "canary": self.canary,
            "shadow": next(iter(self.shadows), None),
        }
        return {role: version for role, version in roles.items() if version is not None}


_EXPECTED = (BundleMissing, BundleDamaged, BundleRefused, ArtifactsError)
_LOGGER = getLogger(__name__)


def no_partitions(day: date) -> Sequence[str]:
    """Return no partitions: live performance does not read the log."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """One model to serve."""

    model: str
    shadows: tuple[tuple[int, str], ...] = ()
    """Number and bundle digest of further versions that run as shadows."""
    live_partitions: Callable[[date], Sequence[str]] = no_partitions
    """Day (UTC) → partitions of live performance that read the requests of that day."""


@dataclass(frozen=True)
class _Wanted:
    number: int
    digest: str
    since: datetime


class StageWatch:
    """Roles of several models, kept up to date by a thread between `start` and `stop`."""

    def __init__(
        self,
        reader: StageReader,
        store: BundleStore,
        declarations: Sequence[Declaration],
        *,
        seconds: float,
        secret: Callable[[], bytes],
        retry_seconds: float = 15.0,
    ) -> None:
        """Read the ledger each `seconds`. Try a bundle that did not load again after `retry_seconds`.

        `secret` returns the secret of the assignment, the first time that a canary has a share.
        """
        self._reader, self._store = reader, store
        self._retry_seconds = retry_seconds
        self._read_secret, self._secret = secret, b""
        self.declarations: Mapping[str, Declaration] = {one.model: one for one in declarations}
        self._seconds = seconds
        self._served: dict[str, Roles] = {}
        self._stages: dict[str, Stages] = {}
        self._problems: dict[str, tuple[str, ...]] = {}
        self._refused: dict[str, tuple[float, str]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="stage-watch", daemon=True)
        self.ledger_problem = ""
        """Reason why the ledger could not be read the last time; empty if it was."""
        self.unanswered_since: datetime | None = None
        """Moment since which no read of the ledger succeeded; None if the last one did."""

    def start(self) -> None:
        """Load what the ledger names, then watch it in a thread."""
        self.refresh()
        self._thread.start()

    def stop(self) -> None:
        """End the thread. The versions stay."""
        self._over.set()
        self._thread.join()

    def served(self, model: str) -> Roles | None:
        """Return the roles of a model now; None if the ledger was never read."""
        return self._served.get(model)

    def stages(self, model: str) -> Stages | None:
        """Return the stages of a model as the ledger last named them; None if it was never read."""
        return self._stages.get(model)

    def problems(self, model: str) -> tuple[str, ...]:
        """Return the reasons why the server differs from the ledger, in words."""
        return self._problems.get(model, ())

    @property
    def ledger_age(self) -> float | None:
        """Seconds since the ledger was read, by this server or on this machine before; None if it never was."""
        if not self._stages:
            return None
        read_at = min(one.read_at for one in self._stages.values())
        return max(0.0, (datetime.now(UTC) - read_at).total_seconds())

    def refresh(self) -> None:
        """Read the ledger and load what changed. Problems are kept for `problems`, never raised."""
        problem, began = "", datetime.now(UTC)
        for declaration in self.declarations.values():
            try:
                problem = self._refresh(declaration) or problem
            except LedgerError as error:
                problem = str(error)
            except Exception as error:
                # Nothing may end the thread: the server would never notice a rollback again.
                problem = f"{type(error).__name__}: {error}"
                _LOGGER.exception("the ledger of %s cannot be read", declaration.model)
        if problem and not self.ledger_problem:
            _LOGGER.warning("the ledger cannot be read, the server keeps its versions: %s", problem)
        if self.ledger_problem and not problem:
            _LOGGER.info("the ledger answers again")
        self.unanswered_since = (self.unanswered_since or began) if problem else None
        self.ledger_problem = problem

    def _work(self) -> None:
        while not self._over.wait(self._seconds):
            self.refresh()

    def _refresh(self, of: Declaration) -> str:
        """Load the versions of a model. Return the reason why the ledger did not name them now, or an empty text."""
        stages = self._reader.stages(of.model)
        old = self._stages.get(of.model)
        is_same = old is not None and _decided(old) == _decided(stages)
        if not is_same or self._problems.get(of.model):
            self._load_stages(of, stages)
        self._stages[of.model] = stages
        return f"its last answer counts, {stages.stale}" if stages.stale else ""

    def _load_stages(self, of: Declaration, stages: Stages) -> None:
        production, canary = (
            None if one is None else _Wanted(one.number, one.bundle_digest, one.since)
            for one in (stages.production, stages.canary)
        )
        now = datetime.now(UTC)
        shadows = [_Wanted(number, digest, now) for number, digest in of.shadows]
        share = _share_of(stages)
        problems: list[str] = []
        if canary is not None and share is not None and not self._secret:
            try:
                self._secret = self._read_secret()
            except (ArtifactsError, LedgerError) as error:
                share = None
                problems.append(
                    f"version {canary.number} is the canary and answers no requests: the secret of the assignment "
                    f"cannot be read: {error}"
                )
        if canary is not None and share is None:
            canary, shadows = None, [canary, *shadows]
        before = self._served.get(of.model, Roles())
        loaded = {one.digest: one for one in (before.production, before.canary, *before.shadows) if one}

        def load(
            wanted: _Wanted | None, role: str, otherwise: ServedVersion | None = None
        ) -> ServedVersion | None:
            if wanted is None:
                return None
            try:
                return self._load(of.model, wanted, loaded)
            except _EXPECTED as error:
                kept = f"version {otherwise.number} keeps answering" if otherwise else "it does not answer"
                problems.append(
                    f"version {wanted.number} is {role} in the ledger and does not load, so {kept}: {error}"
                )
                return otherwise

        served = Roles(
            production=load(production, "production", before.production),
            canary=load(canary, "canary"),
            shadows=tuple(one for wanted in shadows if (one := load(wanted, "shadow")) is not None),
            share=share,
            secret=b"" if share is None else self._secret,
        )
        self._served[of.model] = served  # one assignment: a request sees the roles before or after it
        for said in problems:
            if said not in self.problems(of.model):
                _LOGGER.error("%s: %s", of.model, said)
        self._problems[of.model] = tuple(problems)
        if before.share != share:
            _LOGGER.info("%s: %s", of.model, share or "a canary answers no requests")
        if [(role, one.digest) for role, one in before.versions.items()] != [
            (role, one.digest) for role, one in served.versions.items()
        ]:
            roles = ", ".join(f"{role} version {one.number}" for role, one in served.versions.items())
            _LOGGER.info("%s: %s", of.model, roles or "no version in production")

    def _load(self, model: str, wanted: _Wanted, loaded: Mapping[str, ServedVersion]) -> ServedVersion:
        if (known := loaded.get(wanted.digest)) is not None:
            return replace(known, number=wanted.number, since=wanted.since)
        failed_at, why = self._refused.get(wanted.digest, (0.0, ""))
        if why and time.monotonic() - failed_at < self._retry_seconds:
            raise BundleRefused(why)
        try:
            version = ServedVersion.load(model, wanted.number, wanted.since, self._store.open(wanted.digest))
        except Exception as error:
            self._refused[wanted.digest] = (time.monotonic(), str(error))
            if isinstance(error, _EXPECTED):
                raise
            # Such as an error of onnxruntime.
            raise BundleRefused(f"{type(error).__name__}: {error}") from error
        self._refused.pop(wanted.digest, None)
        return version


def _decided(stages: Stages) -> tuple[object, ...]:
    return stages.production, stages.canary, stages.rules


def _share_of(stages: Stages) -> CanaryShare | None:
    """Return the share of traffic of a canary by the rules in force; None if it is only a shadow."""
    rules = stages.rules
    return None if rules is None or rules.share is None else CanaryShare(share=rules.share, by=rules.by)
