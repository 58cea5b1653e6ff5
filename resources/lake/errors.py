"""What a lake refuses, as types. Each message names what was asked, what was found and what helps."""


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


class LakeBusy(LakeError):
    """The head moved under the operation more often than it retries (lakeFS answers 429). Try again later."""
