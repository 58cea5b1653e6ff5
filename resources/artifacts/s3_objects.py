"""Objects of a bucket as files of a folder: their paths, and comparison with local files.

Here: interpreting S3's answers. Not here: requests (`s3`).
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from resources.artifacts.protocol import relative

PART = 64 << 20
"""Bytes per part of a large upload. A file below twice this size is sent in one request."""

Facts = TypeVar("Facts")


def files_below(prefix: str, found: Mapping[str, Facts]) -> dict[str, Facts]:
    """Return path in the folder at `prefix` → facts, from `found`, bucket key → facts.

    Raise `ArtifactsRefused` for a key that leads out of the folder. Anybody who may write to a bucket can choose such a
    key.
    """
    return {
        relative(key.removeprefix(prefix)): facts
        for key, facts in found.items()
        if key.startswith(prefix) and not key.endswith("/")
    }


def is_same(path: Path, facts: dict[str, Any] | None) -> bool:
    """True if the object has the content of the file. If a server computes ETags differently, the result is False and
    the file is transferred again."""
    if facts is None or not path.is_file() or path.stat().st_size != facts["size"]:
        return False
    return str(facts.get("ETag", "")).strip('"') == _etag(path)


def _etag(path: Path) -> str:
    """Return S3's ETag: the MD5 of a file sent in one request, else the MD5 of its parts' MD5s, and their number."""
    if path.stat().st_size < 2 * PART:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    parts: list[bytes] = []
    with path.open("rb") as file:
        while chunk := file.read(PART):
            parts.append(hashlib.md5(chunk, usedforsecurity=False).digest())
    whole = hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()
    return f"{whole}-{len(parts)}"


def is_in(key: str, file: str) -> bool:
    """True if the path `key` is `file`, or lies below it."""
    return key == file or key.startswith(f"{file}/")
