"""Code of a source tree for the record of a launch: the commit, and what differs from it."""

import subprocess
from pathlib import Path

import pytest

from ml_assets.model.release.signing_keys import create_keys
from resources.environment import CodeState, code_state, environment_facts
from resources.secrets import TOKEN_PREFIX


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A git work tree with one commit."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "code").mkdir()
    (tree / "code" / "kept.py").write_text("a = 1\n\n\nb = 2\n")
    (tree / "table.bin").write_bytes(bytes(range(256)))
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


def test_a_difference_depends_on_no_setting_of_the_person(tree: Path) -> None:
    (tree / "code" / "kept.py").write_text("a = 2\n\n\nb = 2\n")
    (tree / "code" / "größe.py").write_text("a = 1\n")
    found = code_state(tree, None)
    assert b"diff --git a/code/kept.py b/code/kept.py" in found.difference
    for setting in (
        "diff.noprefix=true",
        "diff.context=0",
        "core.abbrev=12",
        "diff.external=false",
        "core.quotePath=false",
        "diff.suppressBlankEmpty=true",
        "status.showUntrackedFiles=no",
    ):
        git(tree, "config", *setting.split("="))
        assert code_state(tree, None) == found, setting
    git(tree, "checkout", "-q", ".")
    assert code_state(tree, None).is_dirty, "a new file"


@pytest.mark.parametrize("last", ["text", "binary"])
def test_a_difference_applied_to_the_commit_gives_the_tree(tree: Path, tmp_path: Path, last: str) -> None:
    """Changed, deleted and new files, text and bytes. The index of the work tree stays as it is."""
    (tree / "code" / "kept.py").write_text("a = 1\n\n\nb = 3  \n")
    (tree / "gone.py").unlink()
    (tree / ("table.bin" if last == "binary" else "a.bin")).write_bytes(bytes(range(256)) * 9)
    git(tree, "add", "--all")
    (tree / "code" / "new").mkdir()
    (tree / "code" / "new" / "Größe é.py").write_text("no line end")
    (tree / "ignored.log").write_text("noise\n")
    with (tree / "code" / "data.py").open("wb") as data:
        data.truncate(11 * 2**20)
    before = git(tree, "status", "--porcelain")
    found = code_state(tree, None)
    assert git(tree, "status", "--porcelain") == before
    assert found.is_dirty
    assert [(one.file, one.why) for one in found.left_out] == [("code/data.py", "has more than 10 MiB")]
    other = tmp_path / "other"
    git(tmp_path, "clone", "-q", str(tree), str(other))
    (tmp_path / "code.diff").write_bytes(found.difference)
    git(other, "apply", "--whitespace=nowarn", str(tmp_path / "code.diff"))
    assert files_of(other) == {
        name: content
        for name, content in files_of(tree).items()
        if name not in ("ignored.log", "code/data.py")
    }


def test_no_difference_holds_a_secret(tree: Path) -> None:
    """New and changed files, staged or not, text or bytes: somebody may get the difference in a dossier."""
    token = f"{TOKEN_PREFIX}{'s3cret' * 6}"
    private = create_keys(tree / "keys").path.read_text()
    (tree / "keys" / ".gitignore").unlink()
    (tree / ".env.local").write_text("PASSWORD=s3cret\n")
    (tree / "notes").mkdir()
    (tree / "notes" / "run.py").write_text("PASSWORD = 's3cret'\n")
    (tree / "code" / "client.json").write_text('{"password": "s3cret"}')
    (tree / "code" / "settings.yaml").write_text(f"token: {token}\n")
    (tree / "code" / "staged.py").write_text(f'KEY = """{private}"""\n')
    (tree / "code" / "link.py").symlink_to(tree / ".env.local")
    git(tree, "add", "code/staged.py")
    (tree / "code" / "kept.py").write_text(f"a = 1\ntoken = '{token}'\n")
    (tree / "table.bin").write_bytes(b"\0" + private.encode())
    (tree / "code" / "new.py").write_text("a = 2\n")
    found = code_state(tree, None)
    changed = [line for line in found.difference.decode().splitlines() if line.startswith("diff ")]
    assert changed == ["diff --git a/code/new.py b/code/new.py"]
    left_out = {one.file: (one.why, bool(one.sha256)) for one in found.left_out}
    no_code = "is neither code nor settings in a folder with Python files of the commit"
    secret, link = "holds a private key or a token", "is not a plain file"
    assert left_out == {
        ".env.local": (no_code, True),
        "code/client.json": (no_code, True),
        "code/kept.py": (secret, False),
        "code/link.py": (link, False),
        "code/settings.yaml": (secret, False),
        "code/staged.py": (secret, False),
        "keys/signing.pem": (no_code, False),
        "keys/signing.pub.pem": (no_code, True),
        "notes/run.py": (no_code, True),
        "table.bin": (secret, False),
    }


def test_a_secret_that_is_deleted_is_in_no_difference(tree: Path) -> None:
    (tree / "code" / "old.py").write_text(f"token = '{TOKEN_PREFIX}{'s3cret' * 6}'\n")
    git(tree, "add", "--all")
    git(tree, "-c", "user.name=ada", "-c", "user.email=ada@example.org", "commit", "-qm", "second")
    (tree / "code" / "old.py").unlink()
    found = code_state(tree, None)
    assert (found.difference, [one.file for one in found.left_out]) == (b"", ["code/old.py"])


def test_code_that_git_ignores_makes_a_tree_dirty(tree: Path) -> None:
    """It is named and left out: what a person keeps from git is not for a dossier. Other ignored files are no code."""
    (tree / ".git" / "info" / "exclude").write_text("local.*\n.venv\n")
    for name in ("local.log", "code/local.txt", "elsewhere/local.py", "code/.venv/local.py"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("noise")
    assert not code_state(tree, None).is_dirty
    (tree / "code" / "local.py").write_text("a = 1\n")
    found = code_state(tree, None)
    assert (found.is_dirty, found.difference) == (True, b"")
    (left_out,) = found.left_out
    assert (left_out.file, left_out.why, left_out.may_be_code) == ("code/local.py", "git ignores it", True)
    assert environment_facts(tree, None)["git_dirty"] == "true"
    (tree / "code" / "local.py").write_text("a = 2\n")
    assert code_state(tree, None) != found


@pytest.mark.parametrize("flag", ["assume-unchanged", "skip-worktree"])
def test_a_change_that_git_was_told_to_overlook_is_recorded(tree: Path, flag: str) -> None:
    """`git status` says that such a tree is clean."""
    git(tree, "update-index", f"--{flag}", "code/kept.py")
    assert not code_state(tree, None).is_dirty
    (tree / "code" / "kept.py").write_text("a = 3\n")
    before = git(tree, "status", "--porcelain"), git(tree, "ls-files", "-v")
    found = code_state(tree, None)
    assert (git(tree, "status", "--porcelain"), git(tree, "ls-files", "-v")) == before
    assert found.is_dirty
    assert b"+a = 3" in found.difference


def test_files_outside_of_a_sparse_checkout_are_not_deleted(tree: Path) -> None:
    git(tree, "sparse-checkout", "set", "--no-cone", "code/")
    assert not (tree / "table.bin").exists()
    assert not code_state(tree, None).is_dirty
    (tree / "code" / "kept.py").write_text("a = 3\n")
    assert b"table.bin" not in code_state(tree, None).difference


def test_a_tree_that_git_cannot_read_is_not_clean(tree: Path) -> None:
    (tree / ".git" / "index").write_bytes(b"damaged")
    commit = git(tree, "rev-parse", "HEAD").strip()
    assert code_state(tree, None) == CodeState(commit=commit, is_dirty=True)


def test_git_ignores_the_folder_of_new_keys(tree: Path) -> None:
    create_keys(tree / "keys")
    assert git(tree, "status", "--porcelain") == ""


def files_of(tree: Path) -> dict[str, bytes]:
    """Path → content of the files of a work tree."""
    paths = [path for path in tree.rglob("*") if path.is_file() and ".git" not in path.parts]
    return {str(path.relative_to(tree)): path.read_bytes() for path in paths}
