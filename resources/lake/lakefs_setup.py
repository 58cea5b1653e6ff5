"""Set up a lakeFS repository: create it, let `main` take merges only, and only merges whose audit passed.

Here: the steps of `ml-assets lake init`, each of which can be repeated, and the audit hook: the lakeFS action that
refuses a merge into `main` whose metadata does not record an audit. Not here: everyday work (`lakefs.py`).

The server runs the hook for every merge into main, and more than once when merges race. So the hook reads only the
metadata of the merge. lakeFS reads the hook from the merge's source, so the hook stops mistakes, not intent. Therefore
`LakeFSStore.merge` compares the hooks of the source with those of main, and `ml-assets lake audit` reads the history
of main.
"""

import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from resources.lake import LakeError, RepositoryMissing
from resources.lake.lakefs_api import LakeFSApi, Refusal
from resources.lake.lakefs_content import Content, ContentCache
from resources.lake.lakefs_listing import Listing

PATH = "_lakefs_actions/audit.yaml"
"""Path at which lakeFS reads the hook."""
NAME = "audit hook"

LUA = """\
local facts = action.commit.metadata
local function says(key)
  return type(facts[key]) == "string" and facts[key] ~= ""
end
if facts["audit"] == "passed" then
  return
end
if facts["audit"] == "accepted" and says("accepted_by") and says("reason") then
  return
end
error("merge into " .. action.branch_id .. " refused: the merge's own metadata has to say audit=passed, or " ..
  "audit=accepted with accepted_by and reason. It says audit=" .. tostring(facts["audit"]) ..
  ". ml-assets publishes after its audit; a person accepts with ml-assets accept")
"""

ACTION = f"""\
name: {NAME}
description: A merge into main needs a passed audit, or a person who accepts without one.
on:
  pre-merge:
    branches: [main]
hooks:
  - id: audit_hook
    type: lua
    properties:
      script: |
{"".join(f"        {line}" for line in LUA.splitlines(keepends=True))}"""
"""Content of the file at `PATH`."""


MAIN = "main"
_PROTECTION_PATIENCE = 60.0
"""Seconds until the protection must hold. lakeFS caches the setting; it took up to 5.4 s."""
_HOOK_PATIENCE = 30.0
"""Seconds until the server must have recorded a run of the audit hook."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Changes that `set_up` made."""

    created: bool
    """True if `set_up` created the repository."""
    protected: bool
    """True if `set_up` switched the protection on."""
    hook_installed: bool
    """True if `set_up` installed or renewed the audit hook."""


def set_up(api: LakeFSApi, storage: str | None, cache: Path) -> Readiness:
    """Create the repository, protect `main` and install the audit hook, each unless it is in place.

    `storage` is the `s3://bucket/prefix` for a new repository's blocks, which lie there in a folder of its name.
    Returns once the server has refused a write to main and has run the audit hook.
    """
    created = create_repository(api, storage)
    protected = protect(api)
    return Readiness(created, protected, install_audit_hook(api, cache))


def create_repository(api: LakeFSApi, storage: str | None) -> bool:
    """Create the repository unless it exists; return True if this call created it."""
    try:
        api.ask("repositories_api", "get_repository")
        return False
    except RepositoryMissing:
        pass
    if storage is None:
        raise LakeError(
            f"Repository {api.repository!r} does not exist, and no storage is set to create it in: set "
            "ML_ASSETS_LAKE_STORAGE to s3://bucket/prefix."
        )
    namespace = f"{storage.rstrip('/')}/{api.repository}"
    creation = api.model(
        "RepositoryCreation", name=api.repository, storage_namespace=namespace, default_branch=MAIN
    )
    try:
        api.ask_server("repositories_api", "create_repository", creation)
    except Refusal as refusal:
        # Another process, or an earlier try whose answer was lost, may have created it.
        if refusal.status == 409:
            return False
        raise LakeError(
            f"lakeFS did not create {api.repository!r} at {namespace}: {refusal.message}. The bucket must exist, and a "
            "prefix that held another repository cannot be used again: choose another ML_ASSETS_LAKE_STORAGE."
        ) from refusal
    return True


def protect(api: LakeFSApi) -> bool:
    """Let `main` take merges only; return True if that is new. Wait until the server has refused a write."""
    rules = api.ask("repositories_api", "get_branch_protection_rules")
    patterns = [str(rule.pattern) for rule in rules]
    if MAIN not in patterns:
        wanted = [api.model("BranchProtectionRule", pattern=pattern) for pattern in (*patterns, MAIN)]
        api.ask("repositories_api", "set_branch_protection_rules", wanted)
    _wait_until_refused(api)
    return MAIN not in patterns


def install_audit_hook(api: LakeFSApi, cache: Path) -> bool:
    """Install the audit hook on `main` unless it is current; return True if this call did. Wait until it has run."""
    store = Content(api, ContentCache(cache), presign_from=None)
    listing = Listing(api)
    content = ACTION.encode()
    head = str(api.ask("branches_api", "get_branch", MAIN).commit_id)
    branch = f"lake-init-{uuid.uuid4().hex[:12]}"
    api.ask("branches_api", "create_branch", api.model("BranchCreation", name=branch, source=head))
    try:
        store.upload(branch, PATH, content)
        if listing.hooks(branch).get(PATH) == listing.hooks(head).get(PATH):
            return False
        message = "Install the audit hook"
        metadata = {"audit": "passed", "made_by": "ml-assets lake init"}
        creation = api.model("CommitCreation", message=message, metadata=metadata)
        theirs = str(api.ask("commits_api", "commit", branch, creation).id)
        merge = api.model("Merge", message=message, metadata=metadata)
        merged = str(api.ask("refs_api", "merge_into_branch", theirs, MAIN, merge=merge).reference)
    finally:
        api.ask("branches_api", "delete_branch", branch)
    _wait_until_run(api, merged)
    return True


def audit_hook_is_current(api: LakeFSApi, cache: Path) -> bool:
    """True if `main` holds the audit hook that this version writes."""
    listing = Listing(api)
    head = str(api.ask("branches_api", "get_branch", MAIN).commit_id)
    entries = {entry.path: entry for entry in listing.own(head)}
    files = Content(api, ContentCache(cache), presign_from=None).files(head, entries)
    return PATH in files and files[PATH].read_bytes() == ACTION.encode()


def _wait_until_refused(api: LakeFSApi) -> None:
    give_up = time.monotonic() + _PROTECTION_PATIENCE
    while time.monotonic() < give_up:
        try:
            # The server checks the protection first. Without it, deleting a missing object changes nothing on main.
            api.ask("objects_api", "delete_object", MAIN, f"not-there-{uuid.uuid4().hex}")
        except Refusal as refusal:
            if refusal.protects:
                return
            raise
        time.sleep(0.2)
    raise LakeError(
        f"main of {api.repository!r} still accepts writes {_PROTECTION_PATIENCE:g} s after it was protected. Look at "
        "the repository's branch protection in lakeFS, then run ml-assets lake init again."
    )


def _wait_until_run(api: LakeFSApi, commit_id: str) -> None:
    """Wait until the server records that the audit hook ran for the merge that made `commit_id`."""
    give_up = time.monotonic() + _HOOK_PATIENCE
    while time.monotonic() < give_up:
        runs = api.ask("actions_api", "list_repository_runs", branch=MAIN, amount=100).results
        for run in runs:
            if run.commit_id == commit_id and run.event_type == "pre-merge" and run.status == "completed":
                return
        time.sleep(0.2)
    raise LakeError(
        f"The {NAME} was merged into main of {api.repository!r}, but the server never ran it: hooks "
        "(LAKEFS_ACTIONS_ENABLED) or Lua are switched off there. Switch them on, then run ml-assets lake init again."
    )
