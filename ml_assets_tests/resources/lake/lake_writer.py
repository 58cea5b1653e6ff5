"""A process that publishes partitions one after another and says what it has done. Made to be killed.

`python -m ml_assets_tests.resources.lake.lake_writer ROOT TABLE FIRST COUNT` publishes COUNT partitions of TABLE,
from number FIRST on, three files each, every one on a branch of its own that is merged into main. Each
finished step is a line: `put BRANCH PATH`, `committed BRANCH`, `merged NUMBER`, `deleted BRANCH`.
"""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

from resources.lake.local import LocalStore

PARTS = 3


def path_of(table: str, number: int, part: int) -> str:
    return f"datasets/{table}/{number:05}/part-{part}"


def content_of(path: str) -> bytes:
    """Some bytes that are a function of the path; up to 256 kB, so that a kill can hit a copy half done."""
    digest = hashlib.sha256(path.encode()).digest()
    return digest * (1 + int.from_bytes(digest[:2]) // 8)


def branch_of(table: str, number: int) -> str:
    return f"audit-{table}-{number}"


def publish(store: LocalStore, table: str, number: int, say: Callable[[str], object]) -> None:
    """Publish one partition, from the start where an earlier attempt was cut short."""
    branch = branch_of(table, number)
    store.release(branch)
    store.create_branch(branch, "main")
    for part in range(PARTS):
        path = path_of(table, number, part)
        store.put(branch, path, content_of(path))
        say(f"put {branch} {path}")
    store.commit(branch, f"write {table} {number}", {})
    say(f"committed {branch}")
    store.merge(branch, "main", f"publish {table} {number}", {"partition": str(number)})
    say(f"merged {number}")
    store.delete_branch(branch)
    say(f"deleted {branch}")


def report(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _, root, table, first, count = sys.argv
    lake = LocalStore(Path(root))
    for number in range(int(first), int(first) + int(count)):
        publish(lake, table, number, report)
