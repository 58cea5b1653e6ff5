"""Rules for names in a lake. They are lakeFS's rules, so a name that works locally works on a server."""

import re

from resources.lake.errors import NameRefused

SERVERS_OWN = "_lakefs_actions/"
"""Prefix of the objects from which lakeFS reads its hooks. Only `ml-assets lake init` writes there."""
_NAME = re.compile(r"\w[-\w]*", re.ASCII)


def check_name(kind: str, name: str) -> None:
    """Raise `NameRefused` unless `name` may name a branch or a tag. The message contains `kind`, the word for it."""
    if not _NAME.fullmatch(name):
        raise NameRefused(
            f"{name!r} cannot name a {kind}: letters, digits, _ and - only, and no - in front, as in lakeFS. "
            "Write - where you would write / or a dot."
        )


def check_path(path: str) -> None:
    """Raise `NameRefused` unless `path` may be the path of an object."""
    if not path or path.startswith("/") or "\0" in path:
        raise NameRefused(
            f"{path!r} cannot be a path: it has to be relative to the repository and not empty."
        )
    if path.startswith(SERVERS_OWN):
        raise NameRefused(
            f"{path!r} cannot be a path: lakeFS reads its hooks from {SERVERS_OWN}, which ml-assets lake init "
            "writes. Choose another folder."
        )
