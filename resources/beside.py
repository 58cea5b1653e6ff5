"""Work in a second thread, for as long as a block runs."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def working_beside(
    work: Callable[[threading.Event], object], name: str, patience_seconds: float | None = None
) -> Generator[None]:
    """Run `work` in a thread while the block runs. When the block ends, set the event given to `work`; wait for it.

    With `patience_seconds`, wait no longer than that: for work that may stand still in a call without a time limit.
    """
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(patience_seconds)
