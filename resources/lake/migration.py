"""Move an embedded lake to an empty lakeFS repository, with the history of all branches and tags.

Each commit along first parents of main, then of every other branch, becomes a commit of the same name, time (in whole
seconds), message and metadata, with the key `migrated_from`. So a killed move knows where it stands. Second parents of
merges stay behind: they are audit branches, whose rows the merges hold. Contents that garbage collection deleted cannot
move; their commits move without them. Not here: how old ids stay readable (`lakefs_listing.py`).
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from resources.lake import Commit, LakeError, ObjectChange, ObjectStat, RepositoryMissing
from resources.lake.lakefs import LakeFSStore
from resources.lake.lakefs_api import Refusal
from resources.lake.lakefs_listing import BRANCH, PATH, decoded, encoded
from resources.lake.local import LocalStore
from resources.threads import side_by_side

MIGRATED_FROM = "migrated_from"
"""Key of a commit's metadata: the id of the commit in the embedded lake."""
MAIN = "main"
_EVERY = 1 << 31
"""Commits of a whole history."""
Progress = Callable[[str], None]


class MigrationRefused(LakeError):
    """The repository holds something else, or the lake changed meanwhile. The message names the remedy."""


class MigrationDiffers(LakeError):
    """A commit or a content of the repository is not that of the embedded lake."""


@dataclass(frozen=True)
class Chain:
    """Commits of a branch that no earlier chain has, oldest first, on top of the commit `base` of an earlier chain."""

    branch: str
    base: str | None
    """None for main, which begins with the root commit."""
    commits: tuple[Commit, ...]


@dataclass(frozen=True, kw_only=True)
class MigrationSize:
    """Branches, commits and contents that a migration moves."""

    branches: int
    tags: int
    commits: int
    migrated: int
    """Commits that an earlier, killed migration moved already."""
    contents: int
    """Different contents."""
    size: int
    """Bytes of them."""
    lost: int
    """Contents that garbage collection deleted."""


class Migration:
    """Move from one embedded lake to one repository, which a killed move left or which is empty or missing."""

    def __init__(self, source: LocalStore, target: LakeFSStore) -> None:
        self._source = source
        self._target = target

    def look(self) -> MigrationSize:
        """Return what `copy` would move. Changes nothing. Raises `MigrationRefused` as `copy` does."""
        self._require_ours()
        seen: dict[tuple[str, int], bool] = {}
        for chain in self._chains:
            for commit in chain.commits:
                for one in self._changes(commit):
                    if one.after is not None:
                        seen.setdefault((one.after.sha256, one.after.size), self._source.holds(one.after))
        here = [size for (_, size), is_held in seen.items() if is_held]
        return MigrationSize(
            branches=sum(not one.branch.startswith(_TAGGED) for one in self._chains),
            tags=len(self._source.tags()),
            commits=sum(len(one.commits) for one in self._chains),
            migrated=sum(len(self._migrated(one)) for one in self._chains) if self._exists() else 0,
            contents=len(here),
            size=sum(here),
            lost=len(seen) - len(here),
        )

    def copy(self, progress: Progress) -> dict[str, str]:
        """Move what is not there yet; verify everything; return old id → new id.

        `progress` gets sentences. Repeat after a kill: finished commits stay. The repository must exist. Raises
        `MigrationRefused` and `MigrationDiffers`.
        """
        self._require_ours()
        heads = self._source.branches(), self._source.tags()
        ids: dict[str, str] = {}
        for chain in self._chains:
            self._copy_chain(chain, ids, progress)
        for tag, commit in self._source.tags().items():
            self._target.tag(tag, ids[commit])
        self._verify(ids, progress)
        if (self._source.branches(), self._source.tags()) != heads:
            raise MigrationRefused(
                f"{self._source.root} changed during the migration: end what publishes to it, and run it again; it "
                "goes on where it stands"
            )
        self._target.create_branch(BRANCH, ids[self._chains[0].commits[0].id])
        self._target.put(BRANCH, PATH, encoded(ids))
        self._target.commit(BRANCH, "Ids of migrated commits", {})
        return ids

    # The embedded lake

    @cached_property
    def _chains(self) -> Sequence[Chain]:
        known: set[str] = set()
        chains: list[Chain] = []
        branches = self._source.branches()
        tagged = {f"{_TAGGED}{name}": commit for name, commit in self._source.tags().items()}
        for name in (MAIN, *(one for one in branches if one != MAIN), *tagged):
            head = (branches | tagged)[name]
            if name in tagged and head in known:
                continue
            commits: list[Commit] = []
            base: str | None = None
            for commit in self._source.log(head, _EVERY):
                if commit.id in known:
                    base = commit.id
                    break
                commits.append(commit)
            chains.append(Chain(name, base, tuple(reversed(commits))))
            known.update(one.id for one in commits)
        return chains

    def _changes(self, commit: Commit) -> Sequence[ObjectChange]:
        return self._source.compare(commit.parents[0], commit.id) if commit.parents else ()

    # The repository

    def _exists(self) -> bool:
        try:
            self._target.head(MAIN)
        except RepositoryMissing:
            return False
        return True

    def _require_ours(self) -> None:
        """Raise `MigrationRefused` unless the repository is missing, empty, or holds a part of this lake."""
        where = f"repository {self._target.api.repository!r} on {self._target.api.address}"
        remedy = "name one that does not exist yet with ML_ASSETS_ENVIRONMENT, or delete it in lakeFS"
        if not self._exists():
            return
        branches = self._target.branches()
        if BRANCH in branches:
            held = decoded(self._target.fetch(BRANCH, [PATH])[PATH].read_bytes()) if self._has_ids() else {}
            if held:
                raise MigrationRefused(
                    f"{where} holds a migrated lake of {len(held):,} commits already: work on it with these settings, "
                    "without ml-assets lake migrate"
                )
        expected = {one.branch for one in self._chains} | {BRANCH}
        if others := branches.keys() - expected:
            raise MigrationRefused(
                f"{where} has branches of its own ({', '.join(sorted(others)[:3])}): {remedy}"
            )
        for chain in self._chains:
            if chain.branch in branches:
                self._migrated(chain)

    def _has_ids(self) -> bool:
        return bool(self._target.list(BRANCH, PATH))

    def _migrated(self, chain: Chain) -> dict[str, str]:
        """Return old id → new id of the commits of a chain that are there. Raises `MigrationRefused` for others."""
        if chain.branch not in self._target.branches(chain.branch):
            return {}
        there: list[tuple[str, str]] = []
        for commit in self._target.log(chain.branch, _EVERY):
            old = commit.metadata.get(MIGRATED_FROM, "")
            if chain.base is not None and old == chain.base:
                break
            if not commit.parents and chain.base is None:
                old = chain.commits[0].id  # the root, which lakeFS makes itself
            there.append((old, commit.id))
        there.reverse()
        if [old for old, _ in there] != [one.id for one in chain.commits[: len(there)]]:
            raise MigrationRefused(
                f"branch {chain.branch!r} of repository {self._target.api.repository!r} holds commits that are not of "
                f"{self._source.root}: name a repository that does not exist yet with ML_ASSETS_ENVIRONMENT, or delete "
                "this one in lakeFS"
            )
        return dict(there)

    def _copy_chain(self, chain: Chain, ids: dict[str, str], progress: Progress) -> None:
        if chain.base is not None:
            self._create(chain.branch, ids[chain.base])
        there = self._migrated(chain)
        ids |= there
        waiting = chain.commits[len(there) :]
        if waiting:
            # A killed migration may have left objects that it did not commit.
            reset = self._target.api.model("ResetCreation", type="reset")
            self._target.api.ask("branches_api", "reset_branch", chain.branch, reset)
        for number, commit in enumerate(waiting, start=len(there) + 1):
            ids[commit.id] = self._copy_commit(chain.branch, commit)
            if number % 100 == 0 or number == len(chain.commits):
                progress(f"{chain.branch}: {number:,} of {len(chain.commits):,} commits")

    def _create(self, branch: str, base: str) -> None:
        """Create a branch at `base` unless an earlier migration did."""
        if branch not in self._target.branches(branch):
            self._target.create_branch(branch, base)

    def _copy_commit(self, branch: str, commit: Commit) -> str:
        """Make one commit on the branch; return its id."""
        changes = self._changes(commit)
        wanted = [one.after for one in changes if one.after is not None and self._source.holds(one.after)]
        files = self._source.fetch(commit.id, [one.path for one in wanted])
        side_by_side(lambda one: self._put(branch, one, files[one.path]), wanted)
        gone = [one.path for one in changes if one.after is None or one.path not in files]
        side_by_side(lambda path: self._target.remove(branch, path), gone)
        creation = self._target.api.model(
            "CommitCreation",
            message=commit.message,
            metadata={**commit.metadata, MIGRATED_FROM: commit.id},
            date=int(commit.created_at.timestamp()),
            allow_empty=True,
        )
        try:
            return str(self._target.api.ask("commits_api", "commit", branch, creation).id)
        except Refusal as refusal:
            raise MigrationRefused(
                f"lakeFS refused a commit on {branch!r} ({refusal.message}): {branch!r} must not be protected during "
                "the migration. Name a repository that does not exist yet with ML_ASSETS_ENVIRONMENT"
            ) from refusal

    def _put(self, branch: str, entry: ObjectStat, file: Path) -> None:
        if self._target.put(branch, entry.path, file) != entry:
            raise MigrationDiffers(
                f"{file} does not have the digest of {entry.path}: the embedded lake is damaged"
            )

    # Afterwards

    def _verify(self, ids: Mapping[str, str], progress: Progress) -> None:
        """Compare every commit with its original, and download and hash every content once."""
        seen: set[str] = set()
        for chain in self._chains:
            for commit in chain.commits:
                if commit.parents:
                    self._verify_commit(commit, ids, seen)
            progress(f"{chain.branch}: {len(chain.commits):,} commits verified")

    def _verify_commit(self, commit: Commit, ids: Mapping[str, str], seen: set[str]) -> None:
        here = ids[commit.id]
        found = {one.path: one.after for one in self._target.compare(ids[commit.parents[0]], here)}
        held = {one.path: self._if_held(one.after) for one in self._changes(commit)}
        before = {one.path: self._if_held(one.before) for one in self._changes(commit)}
        expected = {path: after for path, after in held.items() if after != before[path]}
        if found != expected:
            other = sorted(
                path for path in found.keys() | expected.keys() if found.get(path) != expected.get(path)
            )
            raise MigrationDiffers(
                f"commit {here} differs from {commit.id} of the embedded lake in {other[0]}"
            )
        new = {
            one.sha256: path for path, one in expected.items() if one is not None and one.sha256 not in seen
        }
        seen |= new.keys()
        with tempfile.TemporaryDirectory() as cache:
            # An empty cache: the usual one holds what was just uploaded. Each download is compared with its digest.
            LakeFSStore(self._target.api, Path(cache)).fetch(here, list(new.values()))

    def _if_held(self, entry: ObjectStat | None) -> ObjectStat | None:
        return entry if entry is not None and self._source.holds(entry) else None


_TAGGED = "keep-tag-"
"""Prefix of the branches of tags whose commit no branch has."""
