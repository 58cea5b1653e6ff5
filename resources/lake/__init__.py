"""Versioned storage of tables: the `VersionedStore` protocol and the errors that its stores raise.

Import a store from its own module: `resources.lake.local.LocalStore` is embedded,
`resources.lake.lakefs.LakeFSStore` uses a server.
"""

from resources.lake.store import (
    AuditHookMissing,
    AuditHookRefused,
    BranchDirty,
    BranchProtected,
    Commit,
    LakeBusy,
    LakeError,
    LakeRefused,
    LakeUnavailable,
    MergeConflict,
    NameRefused,
    ObjectChange,
    ObjectNotFound,
    ObjectStat,
    RefExists,
    RefNotFound,
    RepositoryMissing,
    VersionedStore,
)

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
    "ObjectChange",
    "ObjectNotFound",
    "ObjectStat",
    "RefExists",
    "RefNotFound",
    "RepositoryMissing",
    "VersionedStore",
]
