"""Rules for names in a lake: lakeFS's own, so that what works locally works on a server."""

import re

from resources.lake.errors import NameRefused

SERVERS_OWN = "_lakefs_actions/"
"""Prefix of the objects lakeFS reads its hooks from: `ml-assets lake init` writes them, tables never do."""
_NAME = re.compile(r"\w[-\w]*", re.ASCII)


def check_name(kind: str, name: str) -> None:
    """`NameRefused` unless `name` may name a branch or a tag (`kind` says which, for the message)."""
    if not _NAME.fullmatch(name):
        raise NameRefused(
            f"{name!r} cannot name a {kind}: letters, digits, _ and - only, and no - in front, as in lakeFS. "
            "Write - where you would write / or a dot."
        )


def check_path(path: str) -> None:
    """`NameRefused` unless `path` may be an object's path."""
    if not path or path.startswith("/") or "\0" in path:
        raise NameRefused(
            f"{path!r} cannot be a path: it has to be relative to the repository and not empty."
        )
    if path.startswith(SERVERS_OWN):
        raise NameRefused(
            f"{path!r} cannot be a path: lakeFS reads its hooks from {SERVERS_OWN}, which ml-assets lake init "
            "writes. Choose another folder."
        )
