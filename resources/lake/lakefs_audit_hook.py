"""Audit hook: the lakeFS action that refuses a merge into `main` whose metadata does not record an audit.

Here: the text of the hook. Not here: its installation (`lakefs_setup.py`).

The server runs the hook for every merge into main, and more than once when merges race. So the hook reads only the
metadata of the merge. lakeFS reads the hook from the merge's source, so the hook stops mistakes, not intent. Therefore
`LakeFSStore.merge` compares the hooks of the source with those of main, and `ml-assets lake audit` reads the history
of main.
"""

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
