"""Errors of a lake. Each message names the request, the state of the lake and the remedy."""


class LakeError(Exception):
    """Base of all errors that a lake raises."""


class NameRefused(LakeError):
    """A branch or tag name does not match `^\\w[-\\w]*$` (lakeFS's rule: no `/`, no `.`), or a path is
    empty or absolute."""


class RefNotFound(LakeError):
    """No branch, tag or commit has this name."""


class RefExists(LakeError):
    """A branch or tag of this name exists and points elsewhere."""


class ObjectNotFound(LakeError):
    """The path does not exist at this ref."""


class BranchProtected(LakeError):
    """The branch takes merges only (lakeFS answers 403)."""


class BranchDirty(LakeError):
    """The target branch of a merge has uncommitted changes (lakeFS answers 400)."""


class MergeConflict(LakeError):
    """Both sides changed the same path to different content (lakeFS answers 409)."""

    def __init__(self, message: str, paths: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.paths = paths
        """Paths in conflict, sorted."""


class AuditHookRefused(LakeError):
    """The server's audit hook refused a merge: the merge's metadata does not record a passed audit or an acceptance
    (lakeFS answers 412)."""


class AuditHookMissing(LakeError):
    """The source of a merge lacks the audit hook of the target branch. lakeFS reads the hook from the source, so it
    would merge without an audit."""


class LakeBusy(LakeError):
    """Other writers moved the branch more often than the operation retries (lakeFS answers 429, or 503 when its
    database throttles). Try again later."""


class LakeUnavailable(LakeError):
    """The server cannot be reached, does not answer in time or fails inside. Try again later."""


class LakeRefused(LakeError):
    """The server rejects the credentials, or they do not permit the operation."""


class RepositoryMissing(LakeError):
    """The server has no repository of this name. `ml-assets lake init` creates it."""
