"""Last answers of servers, kept on disk for the time in which a server is away.

An answer on disk is never replaced by an older one, whatever processes of this machine write at once. For reads only: a
decision asks the server. Not here: the questions, and what an answer contains
(`ml_assets.model.release.known_versions`).
"""

import hashlib
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from logging import getLogger
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from resources.files import locked, write_whole
from resources.retry import patiently

PATIENCE_SECONDS = 2.0
"""Seconds of retries while there is a last answer to fall back on. A restarted server is often back by then."""
AGAIN_SECONDS = 2.0
"""Seconds after a failure in which the last answers are used without another try: a loop of reads must not wait each
time."""
_REFRESH = timedelta(seconds=5)
"""Age from which on an equal answer is written again, with its new time. It limits writes, and costs that much age."""
_LOGGER = getLogger(__name__)


class Answer(BaseModel):
    """Base of an answer of a server, with its time."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    read_at: datetime
    """Moment at which its read began. It was true then or later."""
    got_at: datetime | None = None
    """Moment at which its read had ended, for people; `LastAnswers` sets it."""
    turn: int = 0
    """Number of its write to the disk. It orders answers of this machine: a clock can run backwards."""
    after: int = 0
    """Turn of the last answer when its read began. `LastAnswers` sets both turns."""
    place: int = 0
    """Place in the log from which it was read; later answers have the same place or a higher one. 0 without a log."""
    is_of_empty_log: bool = Field(default=False, exclude=True)
    """True if the whole log has no row. After an answer with a row, the log was lost, and its server counts as away."""
    away: str = Field(default="", exclude=True)
    """Reason why the server did not give it now; empty if it did."""

    @property
    def stale(self) -> str:
        """Age of a last answer and the reason for using it, in words; empty if the server gave it now."""
        if not self.away:
            return ""
        age = max(timedelta(), datetime.now(UTC) - self.read_at).total_seconds()
        return f"read {age:,.0f} s ago, at {self.read_at:%Y-%m-%d %H:%M:%S} UTC, because {self.away}"

    def is_newer_than(self, other: "Answer") -> bool:
        """Return True if this answer replaces `other`.

        An answer whose read began after the other one was kept is newer; with a lower place, the log itself lost rows.
        Of reads that overlap, the order of the log counts, and then the time at which they began.
        """
        if self._followed(other) != other._followed(self):
            return self._followed(other)
        return (self.place, self.read_at) > (other.place, other.read_at)

    def says_the_same(self, other: "Answer") -> bool:
        """Return True if only the times of both answers differ."""
        same = ("read_at", "turn", "after", "away", "got_at", "is_of_empty_log")
        return self.model_copy(update={name: getattr(other, name) for name in same}) == other

    def _followed(self, other: "Answer") -> bool:
        """Return True if the read of this answer began after `other` was kept."""
        return self.after >= other.turn


Kind = TypeVar("Kind", bound=Answer)


class LastAnswers:
    """Answers of one server. Safe for threads and processes of one machine."""

    def __init__(
        self, folder: Path, server: str, away: tuple[type[Exception], ...], patience_seconds: float
    ) -> None:
        """Keep answers in `folder`, which is created if needed. `server` names the server: another one gets other
        answers. `away` are the errors that mean that it is away. Without a last answer, retries last
        `patience_seconds`.
        """
        self._folder, self._server = folder, server
        self._away, self._patience = away, patience_seconds
        self._lock = threading.Lock()
        self._known: dict[str, Answer] = {}
        self._again_at, self._why = 0.0, ""

    def ask(self, name: str, kind: type[Kind], read: Callable[[datetime], Kind]) -> Kind:
        """Return the answer to the question `name`: of the server, or the last one with `away` set.

        `read` gets the present time for `read_at`, and raises one of the errors in `away` if the server is away. If
        there is no last answer then, raise its last error.
        """
        last = self._last(name, kind)
        if last is not None and time.monotonic() < self._again_at:
            return last.model_copy(update={"away": self._why})
        try:
            answer = patiently(
                lambda: read(datetime.now(UTC)),
                lambda error: isinstance(error, self._away),
                lambda _: self._patience if last is None else min(PATIENCE_SECONDS, self._patience),
                first_pause=0.05,
                longest_pause=0.5,
            )
        except self._away as error:
            last = self._last(name, kind)  # of another process meanwhile
            if last is None:
                raise
            return self._fallen_back(last, str(error))
        if answer.is_of_empty_log and last is not None and last.place > 0:
            return self._fallen_back(
                last,
                f"{self._server} is empty, and row {last.place} was read before: check its address, and that its file "
                "or volume is still there",
            )
        self._again_at = 0.0
        return self._keep(
            name,
            kind,
            answer.model_copy(
                update={"after": 0 if last is None else last.turn, "got_at": datetime.now(UTC)}
            ),
        )

    def _fallen_back(self, last: Kind, why: str) -> Kind:
        self._again_at, self._why = time.monotonic() + AGAIN_SECONDS, why
        return last.model_copy(update={"away": why})

    def _last(self, name: str, kind: type[Kind]) -> Kind | None:
        """Return the newer one of the answer in memory and the one on disk."""
        known = self._known.get(name)
        stored = self._stored(name, kind)
        if isinstance(known, kind) and (stored is None or not stored.is_newer_than(known)):
            return known
        return stored

    def _keep(self, name: str, kind: type[Kind], answer: Kind) -> Kind:
        """Keep an answer; return it, or a newer one that another reader kept meanwhile."""
        with self._lock:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                with locked(self._folder / "lock"):
                    last, stored = self._last(name, kind), self._stored(name, kind)
                    turn = 0 if last is None else last.turn
                    answer = answer.model_copy(update={"turn": turn + 1})
                    if last is not None and not answer.is_newer_than(last):
                        answer = last
                    if last is not None and answer.place < last.place:
                        _LOGGER.warning(
                            "%s: %s ends with row %d, and row %d was read before, at %s UTC: rows were lost, or an "
                            "older copy was restored",
                            name, self._server, answer.place, last.place, f"{last.read_at:%Y-%m-%d %H:%M:%S}",
                        )  # fmt: skip
                    if stored is not None and not _says_more(answer, stored):
                        answer = answer.model_copy(update={"turn": stored.turn})
                    else:
                        text = answer.model_dump_json()
                        write_whole(self._path(name), lambda path: path.write_text(text))
            except OSError as error:  # such as a full disk: the answer is right nevertheless
                _LOGGER.warning("the answer to %s is kept in memory alone: %s", name, error)
            self._known[name] = answer
            return answer

    def _stored(self, name: str, kind: type[Kind]) -> Kind | None:
        try:
            return kind.model_validate_json(self._path(name).read_bytes())
        except (OSError, ValidationError):  # none yet, or of another version of this program
            return None

    def _path(self, name: str) -> Path:
        key = hashlib.sha256(f"{self._server}\n{name}".encode()).hexdigest()
        return self._folder / f"{key[:32]}.json"


def _says_more(answer: Answer, stored: Answer) -> bool:
    return not answer.says_the_same(stored) or abs(answer.read_at - stored.read_at) > _REFRESH
