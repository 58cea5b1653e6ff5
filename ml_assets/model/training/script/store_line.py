"""Calls to a store whose machine may die: a call that torch sent waits for its answer without a time limit."""

# pyright: reportPrivateImportUsage=false
# (torch exports its stores without declaring them)

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, TypeVar

from resources.job.job import ExitCode

if TYPE_CHECKING:
    from torch.distributed import Store

_WAIT_SECONDS = 0.5
_WAITS = 60
"""A store that did not answer in so many waits, 30 s, is lost. Waits and not seconds: a suspended process does not
count them."""

log = logging.getLogger(__name__)

T = TypeVar("T")


class StoreLine:
    """Connection to a store. It is lost for good with the first call that got no answer, which still holds it."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._is_lost = False

    def ask(self, question: Callable[["Store"], T]) -> T:
        """Return what `question` returns about the store; raise what it raises.

        Raises `PeerFailed` with `PEER_LOST` if the store does not answer for 30 s, or was lost before.
        """
        from ml_assets.model.training.process.group import PeerFailed

        answer = Future[T]()
        if not self._is_lost:
            threading.Thread(target=self._answer, args=(question, answer), name="store", daemon=True).start()
            for _ in range(_WAITS):
                if wait([answer], timeout=_WAIT_SECONDS).done:
                    return answer.result()
            self._is_lost = True
            log.warning("the store where ranks meet does not answer: its machine is lost")
        raise PeerFailed(ExitCode.PEER_LOST)

    def _answer(self, question: Callable[["Store"], T], answer: "Future[T]") -> None:
        try:
            answer.set_result(question(self._store))
        except BaseException as error:
            answer.set_exception(error)
