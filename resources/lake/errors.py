"""Errors of a lake. Each message names what was asked, what was found and what helps."""


class LakeError(Exception):
    """Base of every refusal of a lake."""


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
    """A merge into a branch with uncommitted changes (lakeFS answers 400)."""


class MergeConflict(LakeError):
    """Both sides changed the same path to different content (lakeFS answers 409)."""

    def __init__(self, message: str, paths: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.paths = paths
        """The paths in conflict, sorted."""


class AuditHookRefused(LakeError):
    """The server's own audit hook refused a merge: its metadata does not say that the audit was passed
    (lakeFS answers 412)."""


class AuditHookMissing(LakeError):
    """The source of a merge does not carry the audit hook of the branch it would go to, so lakeFS would let it pass
    unexamined: it reads the audit hook from the source."""


class LakeBusy(LakeError):
    """The head moved under the operation more often than it retries (lakeFS answers 429, or 503 when its
    database throttles). Try again later."""


class LakeUnavailable(LakeError):
    """The server cannot be reached, does not answer in time or fails inside. Try again later."""


class LakeRefused(LakeError):
    """The server does not take the credentials, or they may not do this."""


class RepositoryMissing(LakeError):
    """The server has no repository of this name: `ml-assets lake init` makes it."""
