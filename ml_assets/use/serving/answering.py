"""Answer to a request: its rows, the version of each row, the predictions, their record.

Here: everything between the bytes of a request and the bytes of its answer. Not here: HTTP (`app`), rows (`raw_rows`),
the choice of versions (`watch`).
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from logging import getLogger
from typing import Any

import orjson

from ml_assets.use.serving.canary import (
    CanaryBusy,
    CanaryThreads,
    CanaryTooSlow,
    EntityRefused,
    ShadowJob,
    ShadowQueue,
    entity_of,
    is_of_canary,
    sender_of,
)
from ml_assets.use.serving.counters import ServingMetrics
from ml_assets.use.serving.log_retention import LogRetention
from ml_assets.use.serving.online_lookup import LookedUp, OnlineLookup
from ml_assets.use.serving.raw_rows import (
    Prediction,
    RawRow,
    RequestRefused,
    numbers_of,
    parse,
    predict_many,
    predict_one,
)
from ml_assets.use.serving.request_log import LoggedRow, RequestLog, Role
from ml_assets.use.serving.watch import CanaryShare, Roles, ServedVersion, StageWatch

_LOGGER = getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Largest requests."""

    body_bytes: int = 4 * 2**20
    rows: int = 10_000
    canary_seconds: float = 1.0
    """Time that a request waits for a thread of its canary, and then for the prediction."""


@dataclass(frozen=True, kw_only=True)
class ServerParts:
    """Parts of a server that its requests use."""

    watch: StageWatch
    log: RequestLog
    retention: LogRetention
    shadows: ShadowQueue
    metrics: ServingMetrics
    limits: Limits
    canaries: CanaryThreads
    online: Mapping[str, OnlineLookup] = field(default_factory=dict[str, OnlineLookup])
    """Model → online rows from which columns are taken that its requests leave out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request as it arrived."""

    request_id: str
    """Made by the server, so no client can let several requests count as one."""
    client_id: str | None
    """X-Request-Id of the client; None if it sent none."""
    model: str
    at_us: int
    """Microseconds since 1970 in UTC."""
    address: str = ""
    """Network address of the client, as this server sees it."""

    @property
    def said_id(self) -> str:
        """Id in the answer: the client's, or else the server's."""
        return self.client_id or self.request_id


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows of a request."""

    arrival: Arrival
    body: bytes
    rows: Sequence[RawRow]
    entities: Sequence[str | None]
    of_canary: frozenset[int]
    """Places of the rows that are assigned to the canary; empty without one."""
    is_list: bool
    """False if the body is one row."""
    looked_up: Sequence[LookedUp | None]
    """For each row, its columns from the online store; None if it was sent with all of them."""
    sender: str
    """Name of the client; empty without a canary."""

    def in_json(self, place: int) -> bytes:
        is_as_sent = not self.is_list and self.looked_up[place] is None
        return self.body if is_as_sent else orjson.dumps(self.rows[place])


@dataclass(frozen=True, slots=True)
class _Answered:
    version: ServedVersion
    role: Role
    prediction: Prediction


def roles_now(parts: ServerParts, model: str) -> Roles:
    """Return the roles of a model, with a version in production. Raises `RequestRefused`: 404, 503."""
    watch = parts.watch
    if model not in watch.declarations:
        raise RequestRefused(404, f"{model!r} is not served here; there are: {', '.join(watch.declarations)}")
    served = watch.served(model)
    if served is not None and served.production is not None:
        return served
    if problems := watch.problems(model):
        raise RequestRefused(503, "; ".join(problems))
    if watch.ledger_problem:
        raise RequestRefused(503, f"the ledger was not read yet: {watch.ledger_problem}")
    raise RequestRefused(
        503,
        f"no version of {model} is in production. To put one there: ml-assets promote {model} --reason '…'",
    )


def answer(
    parts: ServerParts, arrival: Arrival, served: Roles, body: bytes
) -> tuple[bytes, ShadowJob | None]:
    """Return the answer as JSON, and the work for shadows after it. Raises `RequestRefused`.

    A refused request is counted; if a version refused it, it is logged, too.
    """
    return _answered(parts, served, _read(parts, arrival, served, body))


async def answer_beside_canary(
    parts: ServerParts, arrival: Arrival, served: Roles, body: bytes, is_small: bool
) -> tuple[bytes, ShadowJob | None]:
    """Return what `answer` does, of a model with a canary: each version predicts in threads of its own.

    Production answers also where the canary fails, or takes too long. So a broken canary breaks no request; the log has
    its error. If the canary has no room, production answers, and nothing is logged for the canary.

    A row that production cannot answer either is no evidence about the canary. A row of production's side that
    production cannot answer is shown to the canary for that, so that both sides count alike.
    """
    ask, canary = parts.canaries, served.canary
    read = partial(_read, parts, arrival, served, body)
    batch = read() if is_small else await ask.of_production(arrival.model, read)
    tried: _Tried | None = None
    if canary is not None and batch.of_canary:
        tried = await _try_canary(parts, batch, canary, sorted(batch.of_canary))
        if tried is None:
            parts.metrics.canary_busy(canary.model, canary.number)
    work = partial(_answered, parts, served, batch, tried, ask.too_slow_for(arrival.model))
    try:
        return await ask.of_production(arrival.model, work, is_list=batch.is_list)
    except _Unanswered as unanswered:
        failed = unanswered.places - batch.of_canary
        shown = await _try_canary(parts, batch, canary, sorted(failed)) if canary and failed else None
        could: Iterable[int] = () if shown is None else shown.answered
        await ask.of_production(arrival.model, partial(unanswered.record, could), is_list=batch.is_list)
        raise unanswered.error from None


@dataclass(frozen=True, slots=True)
class _Tried:
    """Rows that the canary tried."""

    version: ServedVersion
    places: Sequence[int]
    fates: Sequence[Prediction | Exception]
    took_ns: int

    @property
    def answered(self) -> dict[int, _Answered]:
        return {
            place: _Answered(self.version, "canary", one)
            for place, one in zip(self.places, self.fates, strict=True)
            if not isinstance(one, Exception)
        }

    @property
    def too_slow(self) -> bool:
        """True if they took too long beside each other: the client chose their number."""
        return any(isinstance(one, CanaryTooSlow) and not one.hangs for one in self.fates)


async def _try_canary(
    parts: ServerParts, batch: _Batch, canary: ServedVersion, places: Sequence[int]
) -> _Tried | None:
    """Return what the canary makes of the rows at `places`; None if it has no room."""
    began_ns = time.perf_counter_ns()
    work = partial(_fates, batch, canary, places)
    try:
        fates, took_ns = await parts.canaries.of_canary(batch.arrival.model, work, is_list=batch.is_list)
    except CanaryTooSlow as error:
        return _Tried(canary, places, [error] * len(places), time.perf_counter_ns() - began_ns)
    except CanaryBusy:
        return None
    return _Tried(canary, places, fates, took_ns)


class _Unanswered(Exception):
    """Production could not answer rows, beside a canary. Nothing about the request is logged yet."""

    def __init__(
        self, error: Exception, places: frozenset[int], record: Callable[[frozenset[int]], None]
    ) -> None:
        super().__init__()
        self.error = error
        """Error of the first row, which the request gets."""
        self.places = places
        self._record = record

    def record(self, counting: Iterable[int]) -> None:
        """Log the request. Of the failed rows, only those at `counting` are evidence."""
        self._record(self.places.difference(counting))


def _answered(
    parts: ServerParts,
    served: Roles,
    batch: _Batch,
    tried: _Tried | None = None,
    too_slow: Callable[[float], CanaryTooSlow | None] | None = None,
) -> tuple[bytes, ShadowJob | None]:
    """Let production predict the rows that the canary did not answer; return the answer and the work for shadows.

    `too_slow` gets the seconds of the prediction. If it gives an error, the log has it for the answered rows: the
    canary has the same bound, and both sides are compared. Without it the model has no canary. Beside a canary,
    raises `_Unanswered`.
    """
    arrival, answers = batch.arrival, {} if tried is None else tried.answered
    places = [place for place in range(len(batch.rows)) if place not in answers]
    if places and (production := served.production) is not None:
        fates, took_ns = _fates(batch, production, places)
        late = None if too_slow is None else too_slow(took_ns / 1e9)
        is_long = batch.is_list and late is not None and not late.hangs
        long = frozenset(places if is_long else ())

        def record(unanswered: frozenset[int]) -> None:
            if tried is not None:
                _record_canary(parts, batch, tried, unanswered)
            _record(
                parts,
                batch,
                production,
                "production",
                fates,
                places,
                took_ns,
                late=None if late is None else f"TooSlowForCanary: {late}",
                no_evidence=unanswered | long,
            )

        faults = {place: one for place, one in zip(places, fates, strict=True) if isinstance(one, Exception)}
        if faults:
            error = next(iter(faults.values()))
            if served.canary is not None:
                raise _Unanswered(error, frozenset(faults), record)
            record(frozenset())
            raise error
        record(frozenset())
        for place, one in zip(places, fates, strict=True):
            if not isinstance(one, Exception):
                answers[place] = _Answered(production, "production", one)
    elif tried is not None:
        _record_canary(parts, batch, tried, frozenset())
    said: list[dict[str, Any]] = []
    for place, row in enumerate(batch.rows):
        one = answers[place]
        entry: dict[str, Any] = {
            "prediction": one.prediction,
            "version": one.version.number,
            "role": one.role,
        }
        if unknown := one.version.unknown_categories(row):
            entry["unknown_categories"] = unknown
            parts.metrics.unknown(arrival.model, one.version.number, unknown)
        if (looked_up := batch.looked_up[place]) is not None:
            entry["online"] = looked_up.as_json()
        said.append(entry)
    names = {"model": arrival.model, "request_id": arrival.said_id}
    content = orjson.dumps({"predictions": said, **names} if batch.is_list else {**said[0], **names})
    if not served.shadows:
        return content, None
    return content, ShadowJob(served.shadows, batch.rows, partial(_record_shadow, parts, batch))


def _record_canary(parts: ServerParts, batch: _Batch, tried: _Tried, unanswered: frozenset[int]) -> None:
    """Count and log what the canary made of its rows. Those at `unanswered` are no evidence."""
    long = frozenset(tried.places if batch.is_list and tried.too_slow else ())
    _record(
        parts,
        batch,
        tried.version,
        "canary",
        tried.fates,
        tried.places,
        tried.took_ns,
        no_evidence=unanswered | long,
    )
    faults = [
        one for one in tried.fates if isinstance(one, Exception) and not isinstance(one, RequestRefused)
    ]
    if faults:
        _LOGGER.error("the canary of %s failed, production answers", tried.version.model, exc_info=faults[0])


def _read(parts: ServerParts, arrival: Arrival, served: Roles, body: bytes) -> _Batch:
    parsed = parse(body, parts.limits.rows)
    rows = parsed if isinstance(parsed, list) else [parsed]
    looked_up: Sequence[LookedUp | None] = [None] * len(rows)
    if (online := parts.online.get(arrival.model)) is not None:
        rows, looked_up = online.complete(served, rows, is_list=isinstance(parsed, list))
        parts.metrics.looked_up(arrival.model, sum(one is not None for one in looked_up))
    canary = served.share
    entities = [_entity(canary, row, place, isinstance(parsed, list)) for place, row in enumerate(rows)]
    return _Batch(
        arrival,
        body,
        rows,
        entities,
        _places_of_canary(served, entities),
        isinstance(parsed, list),
        looked_up,
        sender_of(arrival.address, served.secret) if served.secret else "",
    )


def _entity(canary: CanaryShare | None, row: RawRow, place: int, is_list: bool) -> str | None:
    """Return the entity of a row; None if no share is declared."""
    if canary is None:
        return None
    try:
        return entity_of(row, canary.by)
    except EntityRefused as error:
        raise RequestRefused(422, str(error), error.column, place if is_list else None) from None


def _places_of_canary(served: Roles, entities: Sequence[str | None]) -> frozenset[int]:
    canary, declared = served.canary, served.share
    if declared is None or canary is None:
        return frozenset()
    is_chosen = partial(
        is_of_canary,
        secret=served.secret,
        model=canary.model,
        bundle_digest=canary.digest,
        begun=canary.since,
        share=declared.share,
    )
    return frozenset(place for place, one in enumerate(entities) if one is not None and is_chosen(one))


def _fates(
    batch: _Batch, version: ServedVersion, places: Sequence[int]
) -> tuple[Sequence[Prediction | Exception], int]:
    """Return prediction or error of the rows at `places`, and the nanoseconds that this version took."""
    began_ns = time.perf_counter_ns()
    rows = [batch.rows[place] for place in places]
    fates: Sequence[Prediction | Exception]
    try:
        fates = (
            predict_many(version.runtime, rows) if batch.is_list else [predict_one(version.runtime, rows[0])]
        )
    except Exception as error:
        fates = [_alone(version, batch, place) for place in places] if batch.is_list else [error]
    return fates, time.perf_counter_ns() - began_ns


def _alone(version: ServedVersion, batch: _Batch, place: int) -> Prediction | Exception:
    """Return the prediction or the error of one row of a list whose rows were not all predicted."""
    try:
        return predict_many(version.runtime, [batch.rows[place]])[0]
    except RequestRefused as refusal:
        return refusal.at(place)
    except Exception as error:
        return error


def _record_shadow(
    parts: ServerParts,
    batch: _Batch,
    version: ServedVersion,
    found: Sequence[Prediction] | Exception,
    took_ns: int,
) -> None:
    places = range(len(batch.rows))
    fates = [found] * len(places) if isinstance(found, Exception) else found
    _record(parts, batch, version, "shadow", fates, places, took_ns)


def _record(
    parts: ServerParts,
    batch: _Batch,
    version: ServedVersion,
    role: Role,
    fates: Sequence[Prediction | Exception],
    places: Sequence[int],
    took_ns: int,
    *,
    late: str | None = None,
    no_evidence: frozenset[int] = frozenset(),
) -> None:
    """Count and log what became of each row.

    If a version in production refuses a row, the request gets no prediction. Its other rows are logged without one.
    `late` is the error in the log of rows that were answered nevertheless. Rows at `no_evidence` count for no version.
    """
    names = (version.model, version.number, role)
    faults = [one for one in fates if isinstance(one, Exception)]
    if faults:
        kind = "refused" if isinstance(faults[0], RequestRefused) else type(faults[0]).__name__
        parts.metrics.failed(*names, kind)
    is_answered = not faults or role == "canary"
    if is_answered and len(faults) < len(fates):
        parts.metrics.answered(*names, len(fates) - len(faults), took_ns / 1e9)
    if not parts.log.wants(batch.arrival.request_id):
        return
    parts.log.add(
        LoggedRow(
            request_id=batch.arrival.request_id,
            client_id=batch.arrival.client_id,
            place=place,
            at_us=batch.arrival.at_us,
            model=version.model,
            version=version.number,
            bundle_digest=version.digest,
            role=role,
            assigned="canary" if place in batch.of_canary else "production",
            request_rows=len(batch.rows),
            entity=batch.entities[place],
            row=batch.in_json(place),
            prediction=numbers_of(fate) if is_answered and not isinstance(fate, Exception) else None,
            latency_us=took_ns // 1_000,
            error=f"{type(fate).__name__}: {fate}" if isinstance(fate, Exception) else late,
            counts=place not in no_evidence,
            sender=batch.sender,
        )
        for place, fate in zip(places, fates, strict=True)
    )
