"""Objects of a bucket as files of a folder: by which path, and whether with the same content.

Here: reading what S3 says of them. Not here: asking it (`s3`).
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from resources.artifacts.protocol import relative

PART = 64 << 20
"""Bytes per part of a large upload; files below twice that go as one request."""

Facts = TypeVar("Facts")


def files_below(prefix: str, found: Mapping[str, Facts]) -> dict[str, Facts]:
    """Return what was `found` under a bucket's keys, by path in the folder at `prefix`.

    Raises `ArtifactsRefused` for a key that leads out of the folder: whoever may write to a bucket gives keys any name.
    """
    return {
        relative(key.removeprefix(prefix)): facts
        for key, facts in found.items()
        if key.startswith(prefix) and not key.endswith("/")
    }


def is_same(path: Path, facts: dict[str, Any] | None) -> bool:
    """True if the object has this very content; a server with another kind of ETag only costs a transfer."""
    if facts is None or not path.is_file() or path.stat().st_size != facts["size"]:
        return False
    return str(facts.get("ETag", "")).strip('"') == _etag(path)


def _etag(path: Path) -> str:
    """S3's ETag: the MD5 of a file sent as one request, else the MD5 of its parts' MD5s and their number."""
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
    """True if the path `key` is `file`, or below it where that is a folder."""
    return key == file or key.startswith(f"{file}/")
