"""Meeting of a script's ranks, so that all of them can save together: independent of any process group.

A script may have no process group, an unusual one, or have destroyed it. Its ranks exchange messages in a store. On one
machine the agent opens the store; on several, it is the store in which the nodes meet. There the agent of each machine
beats, because a store does not say that a machine died: ranks waited for such a machine forever.

A call that torch sent to a store whose machine died waits for its answer without a time limit, so each call is made in
a thread. torch connects to an address where nobody listens for as long as its timeout: it tries again and again in one
call, ignores signals meanwhile, and logs a lot. So a look at the address comes first. Not here: checkpoints (api), the
nodes' store (node.agent).
"""

# pyright: reportPrivateImportUsage=false
# (torch exports its stores without declaring them)

import json
import logging
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TypeVar

from torch.distributed import DistNetworkError, DistStoreError, Store, TCPStore

from ml_assets.model.training.process.group import PeerFailed
from resources.job.errors import BadConfiguration, TrainingFailed
from resources.job.job import ExitCode
from resources.threads import working_beside

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 2.0
"""Longest wait for a machine that does not answer at all; a machine without such a process refuses at once."""


def is_listening(host: str, port: int) -> bool:
    """Return True if a process listens there. False if the name does not resolve (yet), nobody listens, or the machine
    does not answer in 2 s."""
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


_WAIT_SECONDS = 0.5
_WAITS = 60
"""A store that did not answer in so many waits, 30 s, is lost. Waits and not seconds: a suspended process does not
count them."""

T = TypeVar("T")


class StoreLine:
    """Connection to a store. It is lost for good with the first call that got no answer, which still holds it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_lost = False

    def ask(self, question: Callable[[Store], T]) -> T:
        """Return what `question` returns about the store; raise what it raises.

        Raises `PeerFailed` with `PEER_LOST` if the store does not answer for 30 s, or was lost before.
        """

        answer = Future[T]()
        if not self._is_lost:
            threading.Thread(target=self._answer, args=(question, answer), name="store", daemon=True).start()
            for _ in range(_WAITS):
                if wait([answer], timeout=_WAIT_SECONDS).done:
                    return answer.result()
            self._is_lost = True
            log.warning("the store where ranks meet does not answer: its machine is lost")
        raise PeerFailed(ExitCode.PEER_LOST)

    def _answer(self, question: Callable[[Store], T], answer: Future[T]) -> None:
        try:
            answer.set_result(question(self._store))
        except BaseException as error:
            answer.set_exception(error)


MEETING = "TRAINING_JOB_MEETING"
"""Environment variable of a script: `host:port` of the store."""
_CALL = timedelta(seconds=60)
_BEAT_CALL = timedelta(seconds=5)
_LAST_BEAT_SECONDS = 10.0
"""Longest wait for the thread that beats, which may stand still in a call to a store whose machine died. Longer than
`_BEAT_CALL`: a process that ends while its thread connects ends with an abort."""
_LOOK = timedelta(seconds=0.5)
"""Interval between two looks at a rank that another waits for: it may have ended."""
_BEAT_SECONDS = 1.0
_SILENT_LOOKS = 60
"""A machine whose beats did not change in this many looks, 30 s, is lost. Looks and not seconds: while this process is
suspended, it does not look."""


@contextmanager
def open_meeting(machines: tuple[str, int, int] | None) -> Generator[None]:
    """Publish a store to the ranks of this machine while the block runs, which runs them. The agent calls this.

    `machines` is host and port of the store where the machines of a job meet, and the number of this one; its beats
    tell the others that it lives. When it ends, it sets a key that says so. None opens a store for this machine alone.
    """

    if machines is None:
        store = TCPStore("127.0.0.1", 0, is_master=True, timeout=_CALL, wait_for_workers=False)
        _place().write_text(f"127.0.0.1:{store.port}")
        yield
        return
    host, port, number = machines
    _place().write_text(f"{host}:{port}")

    def connected() -> TCPStore:
        return TCPStore(host, port, is_master=False, timeout=_BEAT_CALL, wait_for_workers=False)

    def connected_again() -> TCPStore | None:
        return connected() if is_listening(host, port) else None

    store = connected()
    store.add(_beats_of(number), 1)  # before any rank runs: a machine that never beat counts as alive
    with working_beside(
        lambda over: _beat(store, connected_again, number, over), "beats of this machine", _LAST_BEAT_SECONDS
    ):
        yield


def _beat(
    store: Store | None, connected_again: Callable[[], Store | None], number: int, over: threading.Event
) -> None:
    """Beat until `over` is set. A connection that breaks is made anew: this machine lives. If the machine of the store
    is lost, no end waits for it."""

    while not over.wait(_BEAT_SECONDS):
        try:
            store = store or connected_again()
            if store is not None:
                store.add(_beats_of(number), 1)
        except DistNetworkError:
            store = None  # connected again after a wait: a process that dies closes this connection, then its address
        except DistStoreError:
            continue  # it was busy for too long
    if store is not None:
        with suppress(DistNetworkError, DistStoreError):
            store.set(_end_of(number), "")


def find_meeting() -> None:
    """Publish the store's address to the script. Called in a rank that an agent started."""
    os.environ[MEETING] = _place().read_text()


def _place() -> Path:
    return Path(tempfile.gettempdir()) / "meeting"


def _beats_of(machine: int) -> str:
    return f"beats/{machine}"


def _end_of(machine: int) -> str:
    return f"ended/{machine}"


class Silence:
    """Looks at the beats of a machine since the last new one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._beats = b""
        self._looks = 0

    def is_too_long(self, beats: bytes) -> bool:
        """Look once more; return True if that was the `most`th look at the same `beats`. Empty if none beats there, as
        on a single machine, whose agent ends all ranks with the first that dies."""
        self._looks = self._looks + 1 if beats and beats == self._beats else 0
        self._beats = beats
        return self._looks >= self._most


class Meeting:
    """Ranks of a script, or one round of their agreement. All ranks take part in the same order."""

    def __init__(
        self,
        store: "StoreLine | None",
        rank: int,
        world_size: int,
        name: str = "script",
        ranks_of_a_machine: int | None = None,
    ) -> None:
        """`store` is None for a single rank. All ranks are on one machine if `ranks_of_a_machine` is None."""
        self._store = store
        self._of_a_machine = ranks_of_a_machine or world_size
        self._rank = rank
        self._name = name
        self._ranks = range(world_size)
        self._rounds = 0

    @classmethod
    def join(cls, rank: int, world_size: int) -> Self | None:
        """Join all ranks of this job. Return None if torchrun started several ranks by hand without a common store."""
        if world_size == 1:
            return cls(None, rank, 1)
        address = os.environ.get(MEETING)
        if address is None and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        if address is None:
            return None

        host, _, port = address.rpartition(":")
        store = TCPStore(host, int(port), is_master=False, timeout=_CALL, wait_for_workers=False)
        machine = int(os.environ["LOCAL_WORLD_SIZE"])
        return cls(StoreLine(store), rank, world_size, ranks_of_a_machine=machine)

    def round(self) -> "Meeting":
        """Begin the next joint operation of all ranks."""
        self._rounds += 1
        name, ranks = f"round-{self._rounds}", len(self._ranks)
        return Meeting(self._store, self._rank, ranks, name, self._of_a_machine)

    def tell(self, about: str, value: object) -> None:
        """Publish a value that other ranks may read."""
        key, said = f"{self._name}/{about}/{self._rank}", json.dumps(value)
        if self._store is not None:
            self._store.ask(lambda store: store.set(key, said))

    def hear(self, about: str, rank: int) -> Any:
        """Wait for the value that `rank` published under `about`. Raises `PeerFailed` if that rank failed in this
        round, if its machine ended or sent no beat for 30 s, or if the store did not answer for 30 s, and
        `BadConfiguration` if its script has ended.
        """
        assert self._store is not None
        silence = Silence(_SILENT_LOOKS)
        while True:
            said = self._store.ask(lambda store: self._look(store, about, rank, silence))
            if said is not None:
                return json.loads(said)

    def _look(self, store: Store, about: str, rank: int, silence: Silence) -> bytes | None:
        """Return what `rank` published, as JSON; None if it has not yet."""

        key, failed, left = f"{self._name}/{about}/{rank}", f"{self._name}/failed/{rank}", f"left/{rank}"
        machine = rank // self._of_a_machine
        # First: a rank publishes its values before it leaves, and before its machine ends.
        has_left, has_ended = store.check([left]), store.check([_end_of(machine)])
        try:
            store.wait([key], _LOOK)
        except DistStoreError:
            if store.check([failed]):
                raise PeerFailed(int(store.get(failed))) from None
            if has_left:
                raise BadConfiguration(
                    f"rank {rank} has ended, but rank {self._rank} waits for its part of a checkpoint: call "
                    "checkpoint(step, all_ranks=True) equally often on each rank"
                ) from None
            beats = _beats_of(machine)
            if has_ended or silence.is_too_long(store.get(beats) if store.check([beats]) else b""):
                log.warning(
                    "machine %d with rank %d ended or sent no beat for 30 s; its part of the checkpoint is missing",
                    machine,
                    rank,
                )
                raise PeerFailed(ExitCode.PEER_LOST) from None
            return None
        return store.get(key)

    def gather(self, about: str, value: T) -> list[T]:
        """Return `value` of every rank, ordered by rank."""
        self.tell(about, value)
        return [value if rank == self._rank else self.hear(about, rank) for rank in self._ranks]

    def all_succeed(self, about: str, action: Callable[[], T]) -> T:
        """Run `action` on every rank; return after all have. If it fails on one rank, the others raise `PeerFailed`."""
        result = action()
        self.gather(about, True)
        return result

    def fail(self, error: BaseException) -> None:
        """Publish this rank's failure, so that others do not wait for it in this round."""
        code = error.exit_code if isinstance(error, TrainingFailed) else None
        self._say_at_the_end(f"{self._name}/failed/{self._rank}", str(int(code or ExitCode.PEER_LOST)))

    def leave(self) -> None:
        """Publish that this rank's script has ended."""
        self._say_at_the_end(f"left/{self._rank}", "")

    def _say_at_the_end(self, key: str, word: str) -> None:

        if self._store is not None:
            with suppress(PeerFailed):  # the store is lost: this rank's own error counts
                self._store.ask(lambda store: store.set(key, word))
