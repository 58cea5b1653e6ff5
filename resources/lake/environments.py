"""Environments: the record of each, the names that it has in the lake, and the lake as it sees it.

An environment is a branch of the lake in place of main, and a folder of the home with a ledger, tracking and a Dagster
home of its own. In its view of the lake, its own branch has the name `main`. Everything else is the work of the store
behind it. So no code that reads or publishes to main knows of environments.

    main            the branch `env-NAME` of the store
    audit-orders    the branch `env-NAME--audit-orders`: branches that the environment creates are its own
    any other ref   a branch or tag of its own, or else of the lake; or a commit id

Not here: creating, comparing and merging (`ml_assets.data.tables.environments`).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from resources.files import write_whole
from resources.lake import (
    BranchProtected,
    Commit,
    NameRefused,
    ObjectChange,
    ObjectStat,
    RefNotFound,
    VersionedStore,
    check_name,
)
from resources.settings import ENV_NAME

_RECORD = "environment.json"
_FOLDER = "environments"


class EnvironmentMissing(Exception):
    """The home has no environment of this name."""


class EnvironmentNameRefused(ValueError):
    """A name of an environment has other characters than small letters, digits and _, or more than 40 of them, or is
    `main`."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Record of an environment."""

    name: str
    author: str
    """Person who created it."""
    created_at: datetime
    """UTC."""
    origin: str
    """Commit of main from which it was created."""
    base: str
    """Commit with which its branch is compared: `origin`, and after a merge the head that was merged."""


def check_environment_name(name: str) -> str:
    """Return `name`. Raises `EnvironmentNameRefused`, which proposes a name."""
    if name == "main":
        raise EnvironmentNameRefused(
            "'main' cannot name an environment: it names what everyone works on, and texts about the two could not be "
            "told apart. Take another name, such as your own"
        )
    if re.fullmatch(ENV_NAME, name) is None or len(name) > 40:
        proposed = re.sub(r"\W+", "_", name.lower(), flags=re.ASCII).strip("_")[:40]
        instead = f": {proposed!r} is possible" if proposed else ""
        raise EnvironmentNameRefused(
            f"{name!r} cannot name an environment: up to 40 small letters, digits and _{instead}"
        )
    return name


def environment_folder(home: Path, name: str) -> Path:
    """Return the folder of an environment's ledger, tracking and Dagster home."""
    return home / _FOLDER / check_environment_name(name)


def environments(home: Path) -> list[Environment]:
    """Return the environments of a home, oldest first."""
    records = (home / _FOLDER).glob(f"*/{_RECORD}")
    return sorted((_read(record) for record in records), key=lambda one: (one.created_at, one.name))


def read_environment(home: Path, name: str) -> Environment:
    """Return an environment. Raises `EnvironmentMissing`."""
    record = environment_folder(home, name) / _RECORD
    try:
        return _read(record)
    except FileNotFoundError:
        known = ", ".join(one.name for one in environments(home))
        raise EnvironmentMissing(
            f"no environment is named {name!r} in {home} (there are: {known or 'none'}). "
            f"To create it: ml-assets env create {name}. To work on main: unset ML_ASSETS_ENV"
        ) from None


def write_environment(folder: Path, environment: Environment) -> None:
    """Write the record of an environment to its folder, which exists."""
    facts = {**asdict(environment), "created_at": environment.created_at.isoformat()}
    write_whole(folder / _RECORD, lambda path: path.write_text(json.dumps(facts, indent=1)))


def _read(record: Path) -> Environment:
    facts = json.loads(record.read_text())
    created_at = datetime.fromisoformat(facts.pop("created_at"))
    return Environment(**facts, created_at=created_at)


_MAIN = "main"
_OWN = "--"
"""Between the branch of an environment and the rest of the name of another branch of it."""
_COMMIT = re.compile(r"[0-9a-f]{64}")


def branch_of(environment: str) -> str:
    """Return the name of the branch that is main in an environment."""
    return f"env-{environment}"


def own_prefix(environment: str) -> str:
    """Return the prefix of all other branches of an environment."""
    return branch_of(environment) + _OWN


class EnvironmentView:
    """A `VersionedStore` in which the branch of an environment takes the place of main. Main takes merges only."""

    def __init__(self, store: VersionedStore, environment: str) -> None:
        self._store = store
        self._main = branch_of(environment)
        self._prefix = own_prefix(environment)

    def __repr__(self) -> str:
        return f"EnvironmentView({self._store!r}, {self._main!r})"

    # Reading

    def resolve(self, ref: str) -> str:
        """Return the commit id of `ref`. For a branch, return its head, without uncommitted changes."""
        return self._store.resolve(self._ref(ref))

    def branches(self, prefix: str = "") -> dict[str, str]:
        """Branch name → commit id of main and the environment's own branches, sorted by name."""
        found = self._own(self._store.branches(self._prefix), prefix)
        if _MAIN.startswith(prefix):
            found[_MAIN] = self._store.resolve(self._main)
        return dict(sorted(found.items()))

    def tags(self) -> dict[str, str]:
        """Tag name → commit id of the environment's own tags, sorted by name."""
        return self._own(self._store.tags(), "")

    def list(self, ref: str, prefix: str = "") -> list[ObjectStat]:
        """Objects whose path starts with `prefix`, sorted by path."""
        return self._store.list(self._ref(ref), prefix)

    def compare(self, before: str, after: str) -> Sequence[ObjectChange]:
        """Paths whose content differs between two refs, sorted."""
        return self._store.compare(self._ref(before), self._ref(after))

    def stat(self, ref: str, path: str) -> ObjectStat:
        """Return one object. Raise `ObjectNotFound` if it is missing."""
        return self._store.stat(self._ref(ref), path)

    def fetch(self, ref: str, paths: Sequence[str]) -> dict[str, Path]:
        """Return local read-only files with the content of `paths` at `ref`."""
        return self._store.fetch(self._ref(ref), paths)

    def log(self, ref: str, limit: int = 100) -> Iterator[Commit]:
        """Commits from `ref` backwards along first parents, newest first."""
        return self._store.log(self._ref(ref), limit)

    def read_commit(self, commit_id: str) -> Commit:
        """Return one commit by id."""
        return self._store.read_commit(commit_id)

    def commit_url(self, commit_id: str) -> str | None:
        """Return the address of the page that shows a commit, or None if the lake has no pages."""
        return self._store.commit_url(commit_id)

    # Writing

    def put(self, branch: str, path: str, source: Path | bytes) -> ObjectStat:
        """Write one object without committing it. Raise `BranchProtected` for main."""
        return self._store.put(self._for_writing(branch), path, source)

    def remove(self, branch: str, path: str) -> None:
        """Remove one object without committing the removal. Raise `BranchProtected` for main."""
        self._store.remove(self._for_writing(branch), path)

    def commit(self, branch: str, message: str, metadata: Mapping[str, str]) -> str:
        """Commit the uncommitted changes of `branch`; return the new head. Without changes, return the current head."""
        return self._store.commit(self._for_writing(branch), message, metadata)

    def merge(self, source: str, into: str, message: str, metadata: Mapping[str, str]) -> str:
        """Merge three ways by path; return the new head of `into`. Raise `MergeConflict` or `BranchDirty`."""
        target = self._main if into == _MAIN else self._name(into)
        return self._store.merge(self._ref(source), target, message, metadata)

    def create_branch(self, name: str, source: str) -> str:
        """Create branch `name` of the environment at `source`; return its commit id."""
        check_name("branch", name)
        return self._store.create_branch(self._main if name == _MAIN else self._name(name), self._ref(source))

    def delete_branch(self, name: str) -> None:
        """Delete a branch of the environment and its uncommitted changes. Raise `BranchProtected` for main."""
        self._store.delete_branch(self._for_writing(name))

    def tag(self, name: str, ref: str) -> str:
        """Name a commit for people in this environment; return its id."""
        check_name("tag", name)
        return self._store.tag(self._name(name), self._ref(ref))

    def keep(self, name: str, ref: str) -> str:
        """Create branch `name` of the environment at `ref`; return the commit id. Idempotent."""
        return self.create_branch(name, ref)

    def release(self, name: str) -> None:
        """Delete a kept branch of the environment. Do nothing if it does not exist."""
        self._store.release(self._for_writing(name))

    # Names

    def _name(self, name: str) -> str:
        return self._prefix + name

    def _for_writing(self, branch: str) -> str:
        if branch == _MAIN:
            raise BranchProtected(
                f"Cannot write to {self._main!r}, which is main in this environment: it takes merges only. Write to a "
                "branch made from it, then merge."
            )
        return self._name(branch)

    def _ref(self, ref: str) -> str:
        if ref == _MAIN:
            return self._main
        if _COMMIT.fullmatch(ref):
            return ref
        try:
            self._store.resolve(self._name(ref))
        except (RefNotFound, NameRefused):
            return ref
        return self._name(ref)

    def _own(self, names: Mapping[str, str], prefix: str) -> dict[str, str]:
        start = self._name(prefix)
        return {
            name.removeprefix(self._prefix): commit
            for name, commit in names.items()
            if name.startswith(start)
        }
