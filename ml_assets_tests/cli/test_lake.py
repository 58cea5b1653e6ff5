"""`ml-assets lake` on the embedded lake: nothing to make ready, and a history that can be read."""

from ml_assets_tests.cli.terminal import Terminal
from resources.lake.local import LocalStore


def test_the_embedded_lake_makes_itself(terminal: Terminal) -> None:
    said = terminal("lake", "init")
    assert said.status == 0, said.err
    assert "its first use creates it" in said.out


def test_lake_audit_names_commits_without_an_audit(terminal: Terminal) -> None:
    assert terminal("lake", "audit").status == 0
    store = LocalStore(terminal.home / "lake" / "local")
    for name, metadata in (
        ("passed", {"audit": "passed"}),
        ("accepted", {"audit": "accepted", "accepted_by": "ada", "reason": "a holiday"}),
        ("nobody", {"audit": "accepted"}),
        ("unsaid", {}),
    ):
        store.create_branch(name, "main")
        store.put(name, name, b"1")
        store.commit(name, "write", {})
        store.merge(name, "main", f"merged by {name}", metadata)
    said = terminal("lake", "audit")
    assert said.status == 1
    assert "merged by nobody" in said.out
    assert "merged by unsaid" in said.out
    assert "merged by passed" not in said.out
    assert "merged by accepted" not in said.out
    assert "passed audit: 2." in said.out
