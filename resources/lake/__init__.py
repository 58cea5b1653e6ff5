"""Versioned storage of tables: the `VersionedStore` protocol and the stores that keep it."""

from resources.lake.errors import (
    BranchDirty,
    BranchProtected,
    LakeBusy,
    LakeError,
    MergeConflict,
    NameRefused,
    ObjectNotFound,
    RefExists,
    RefNotFound,
)
from resources.lake.store import Commit, ObjectStat, VersionedStore

__all__ = [
    "BranchDirty",
    "BranchProtected",
    "Commit",
    "LakeBusy",
    "LakeError",
    "MergeConflict",
    "NameRefused",
    "ObjectNotFound",
    "ObjectStat",
    "RefExists",
    "RefNotFound",
    "VersionedStore",
]
