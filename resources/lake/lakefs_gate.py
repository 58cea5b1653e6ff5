"""The gate that lakeFS itself puts before `main`: no merge without a word on its audit, whoever asks for it.

Here: the hook's text. Not here: bringing it to a repository (`lakefs_setup.py`).

It runs in the server for every merge into main, several times where merges race, so it only looks at the
merge's own metadata. lakeFS reads it from the merge's source: it stops mistakes, not intent. That is why
`LakeFSStore.merge` compares the source's hooks with main's, and `ml-assets lake audit` reads main's history.
"""

PATH = "_lakefs_actions/audit.yaml"
"""Path at which lakeFS reads the hook."""
NAME = "audit gate"

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
  - id: audit_gate
    type: lua
    properties:
      script: |
{"".join(f"        {line}" for line in LUA.splitlines(keepends=True))}"""
"""The content of `PATH`."""
