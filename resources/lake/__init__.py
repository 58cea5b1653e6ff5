"""Versioned storage of tables: the `VersionedStore` protocol and what the stores that keep it refuse.

The stores themselves are imported by their own names: `resources.lake.local.LocalStore` is the embedded one,
`resources.lake.lakefs.LakeFSStore` speaks to a server.
"""

from resources.lake.errors import (
    AuditHookMissing,
    AuditHookRefused,
    BranchDirty,
    BranchProtected,
    LakeBusy,
    LakeError,
    LakeRefused,
    LakeUnavailable,
    MergeConflict,
    NameRefused,
    ObjectNotFound,
    RefExists,
    RefNotFound,
    RepositoryMissing,
)
from resources.lake.store import Commit, ObjectStat, VersionedStore

__all__ = [
    "AuditHookMissing",
    "AuditHookRefused",
    "BranchDirty",
    "BranchProtected",
    "Commit",
    "LakeBusy",
    "LakeError",
    "LakeRefused",
    "LakeUnavailable",
    "MergeConflict",
    "NameRefused",
    "ObjectNotFound",
    "ObjectStat",
    "RefExists",
    "RefNotFound",
    "RepositoryMissing",
    "VersionedStore",
]
