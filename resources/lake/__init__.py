"""Versioned storage of tables: the `VersionedStore` protocol and what the stores that keep it refuse.

The stores themselves are imported by their own names: `resources.lake.local.LocalStore` is the embedded one.
"""

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
