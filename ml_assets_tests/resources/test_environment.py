"""Code of a source tree for the record of a launch: the commit, and what differs from it."""

import subprocess
from pathlib import Path

import pytest

from resources.environment import CodeState, code_state


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A git work tree with one commit."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "kept.py").write_text("a = 1\n\n\nb = 2\n")
    (tree / "gone.py").write_text("old\n")
    (tree / ".gitignore").write_text("*.log\n")
    git(tree, "init", "-q")
    git(tree, "add", "--all")
    git(tree, "-c", "user.name=ada", "-c", "user.email=ada@example.org", "commit", "-qm", "first")
    return tree


def git(tree: Path, *arguments: str) -> str:
    """Run git in `tree`, and return its output."""
    return subprocess.run(["git", *arguments], cwd=tree, capture_output=True, text=True, check=True).stdout


def test_a_clean_tree_is_its_commit(tree: Path) -> None:
    assert code_state(tree, None) == CodeState(commit=git(tree, "rev-parse", "HEAD").strip(), is_dirty=False)


def test_without_a_work_tree_the_settings_name_the_commit(tmp_path: Path) -> None:
    assert code_state(tmp_path, f"{'c' * 40}-dirty") == CodeState(commit="c" * 40, is_dirty=True)
    assert code_state(tmp_path, None) == CodeState(commit="", is_dirty=False)


@pytest.mark.parametrize("last", ["text", "binary"])
def test_a_difference_applied_to_the_commit_gives_the_tree(tree: Path, tmp_path: Path, last: str) -> None:
    """Changed, deleted and new files, text and bytes. The index of the work tree stays as it is."""
    (tree / "kept.py").write_text("a = 1\n\n\nb = 3  \n")
    (tree / "gone.py").unlink()
    (tree / "new").mkdir()
    (tree / "new" / "Größe é.txt").write_text("no line end")
    (tree / "new" / ("z.bin" if last == "binary" else "a.bin")).write_bytes(bytes(range(256)) * 9)
    (tree / "ignored.log").write_text("noise\n")
    with (tree / "data.bin").open("wb") as data:
        data.truncate(11 * 2**20)
    before = git(tree, "status", "--porcelain")
    found = code_state(tree, None)
    assert git(tree, "status", "--porcelain") == before
    assert (found.is_dirty, found.left_out) == (True, ("data.bin",))
    other = tmp_path / "other"
    git(tmp_path, "clone", "-q", str(tree), str(other))
    (tmp_path / "code.diff").write_bytes(found.difference)
    git(other, "apply", "--whitespace=nowarn", str(tmp_path / "code.diff"))
    assert files_of(other) == {
        name: content for name, content in files_of(tree).items() if name not in ("ignored.log", "data.bin")
    }


def files_of(tree: Path) -> dict[str, bytes]:
    """Path → content of the files of a work tree."""
    paths = [path for path in tree.rglob("*") if path.is_file() and ".git" not in path.parts]
    return {str(path.relative_to(tree)): path.read_bytes() for path in paths}
