"""Turns on the cluster: many tests at once, or one that ends a node or the control plane.

Test processes agree by two file locks. Whoever wants the cluster alone keeps the first while it waits for the second,
so that it waits for those that run, and not for those that would come after.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def hold_cluster(folder: Path, *, alone: bool) -> Iterator[None]:
    """Lock the cluster whose state is in `folder` while the block runs: shared, or `alone`."""
    with (folder / "tests.next").open("w") as door, (folder / "tests.now").open("w") as cluster:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(cluster, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
