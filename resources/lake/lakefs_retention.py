"""Garbage collection rules of a lakeFS repository, and the contents that they let lakeFS delete.

lakeFS's own job deletes objects: a Spark job, or a part of its enterprise edition. The open source server has none, so
this module sets the rules that the job reads, and computes what they free. lakeFS counts as roots the heads of branches
only, and what each branch held in the last days, never tags. So commits to keep get a branch.
"""

from datetime import UTC, datetime, timedelta

from resources.lake.errors import LakeError
from resources.lake.garbage import Garbage, GarbageRules
from resources.lake.lakefs_api import LakeFSApi, Refusal
from resources.lake.lakefs_setup import MAIN
from resources.lake.store import ObjectStat, VersionedStore

KEPT = "keep-base-"
"""Prefix of the branches that keep commits for garbage collection."""
_EVERY = 1 << 31
"""Commits of a whole history."""
_NOTE = "lakeFS deletes them when its garbage collection job runs: a Spark job, or a part of its enterprise edition"


class LakeFSRetention:
    """`GarbageCollector` of a lakeFS repository: it sets rules, and lakeFS deletes."""

    def __init__(self, api: LakeFSApi, store: VersionedStore) -> None:
        self._api = api
        self._store = store

    def look(self, rules: GarbageRules) -> Garbage:
        """Return contents of main that were replaced before `rules.since` and that no branch holds.

        Reads the differences of the commits before that time, and of the branches with main. Contents of deleted
        branches are not counted.
        """
        gone: set[ObjectStat] = set()
        for commit in self._store.log(MAIN, _EVERY):
            if commit.created_at < rules.since and commit.parents:
                changes = self._store.compare(commit.parents[0], commit.id)
                gone.update(one.before for one in changes if one.before is not None)
        if gone:
            gone.difference_update(self._store.list(MAIN))
            left_out = {MAIN, *rules.without}
            heads = {head for name, head in self._store.branches().items() if name not in left_out}
            for commit in heads.union(rules.commits):
                gone.difference_update(
                    one.after for one in self._store.compare(MAIN, commit) if one.after is not None
                )
        return Garbage(objects=len(gone), size=sum(one.size for one in gone), note=_NOTE)

    def collect(self, rules: GarbageRules) -> Garbage:
        """Set the rules of the repository and keep the named commits on branches; return what lakeFS may delete."""
        wanted = {f"{KEPT}{commit[:12]}": commit for commit in rules.commits}
        for name, commit in wanted.items():
            self._store.keep(name, commit)
        for name in self._store.branches(KEPT):
            if name not in wanted:
                self._store.release(name)
        days = max(1, round((datetime.now(UTC) - rules.since) / timedelta(days=1)))
        self._api.ask(
            "repositories_api",
            "set_gc_rules",
            self._api.model("GarbageCollectionRules", default_retention_days=days, branches=[]),
        )
        if self.retention_days() != days:
            raise LakeError(
                f"lakeFS did not keep the rules of {self._api.repository!r}: {days} days were set. Look at the "
                "repository's retention settings in lakeFS, then run ml-assets gc --delete again."
            )
        return self.look(rules)

    def retention_days(self) -> int | None:
        """Return the days of the rules on the server; None if it has none."""
        try:
            # As JSON: the client refuses the server's own answer, in which `branches` is null.
            rules = self._api.ask_plainly("repositories_api", "get_gc_rules")
            return int(rules["default_retention_days"])
        except Refusal as refusal:
            if refusal.status != 404:
                raise
            return None
