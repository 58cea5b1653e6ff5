"""Code of a launch in a scratch folder: its commit, and on top what differed from it."""

import hashlib
import json
import sys
from pathlib import Path

import pytest

from ml_assets.extras.reproduction.recorded_environment import CodeNotRestored, recorded_tree, run_in
from ml_assets.model.steps.train import DIFFERENCE, SOURCES, LaunchRecord
from ml_assets_tests.pipeline.launch_records import launch_record
from ml_assets_tests.resources.test_environment import git
from resources.environment import LeftOut, code_state
from resources.platform import Platform
from resources.secrets import TOKEN_PREFIX
from resources.settings import Settings

WHO = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with one commit and a changed file."""
    repository = tmp_path / "repository"
    (repository / "code").mkdir(parents=True)
    (repository / "code" / "model.py").write_text("layers = 1\n")
    git(repository, "init", "-q")
    git(repository, "add", "--all")
    git(repository, *WHO, "commit", "-qm", "first")
    (repository / "code" / "model.py").write_text("layers = 2\n")
    (repository / "code" / "new.py").write_text("a = 1\n")
    return repository


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    return Platform(Settings(home=tmp_path / "home"))


def launched(platform: Platform, repository: Path) -> LaunchRecord:
    """Return a launch with the code of `repository` as it is now."""
    code = code_state(repository, None)
    digest = hashlib.sha256(code.difference).hexdigest()
    with platform.artifacts.create(f"{SOURCES}/{digest}", DIFFERENCE) as stream:
        stream.write(code.difference)
    return launch_record(commit=code.commit, is_dirty=True, difference=digest, left_out=code.left_out)


@pytest.mark.parametrize("is_shallow", [False, True])
def test_the_code_of_a_launch_returns(
    platform: Platform, repository: Path, tmp_path: Path, is_shallow: bool
) -> None:
    """Its state is the recorded one, to the digest. The repository stays as it is, and no folder stays behind."""
    (repository / "notes.txt").write_text("no code")
    (repository / "staged.txt").write_text("no code, but git knows it")
    git(repository, "add", "staged.txt")
    launch = launched(platform, repository)
    then = code_state(repository, None)
    git(repository, "rm", "-qf", "staged.txt")
    git(repository, "clean", "-fdq")
    git(repository, *WHO, "commit", "-qam", "second")
    if is_shallow:
        git(tmp_path, "clone", "-q", "--depth", "2", f"file://{repository}", str(tmp_path / "shallow"))
        repository = tmp_path / "shallow"
    before = set(repository.rglob("*"))
    with recorded_tree(platform, launch, repository) as tree:
        assert (tree / "code" / "model.py").read_text() == "layers = 2\n"
        now = code_state(tree, None)
        assert (now.commit, now.difference) == (then.commit, then.difference)
    assert not tree.parent.exists()
    assert set(repository.rglob("*")) == before


def test_settings_of_the_caller_and_its_git_change_nothing(
    platform: Platform, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook of another repository runs it, and the person has hooks, attributes and line ends of their own."""
    launch = launched(platform, repository)
    git(repository, "checkout", "-q", "--", ".")
    (repository / "code" / "new.py").unlink()
    other = tmp_path / "other"
    git(tmp_path, "clone", "-q", str(repository), str(other))
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "post-checkout").write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\n")
    (hooks / "post-checkout").chmod(0o755)
    (tmp_path / "gitconfig").write_text(f"[core]\nhooksPath = {hooks}\nautocrlf = true\n")
    before = files_of(other, ".git"), files_of(repository, ".git")
    for name, value in {
        "GIT_DIR": other / ".git",
        "GIT_INDEX_FILE": other / ".git" / "index",
        "GIT_WORK_TREE": other,
        "GIT_CONFIG_GLOBAL": tmp_path / "gitconfig",
    }.items():
        monkeypatch.setenv(name, str(value))
    with recorded_tree(platform, launch, repository) as tree:
        assert (tree / "code" / "model.py").read_bytes() == b"layers = 2\n"
        assert (tree / "code" / "new.py").read_bytes() == b"a = 1\n"
        assert code_state(tree, None).commit == launch.commit
    assert not (tmp_path / "hook-ran").exists()
    assert before == (files_of(other, ".git"), files_of(repository, ".git"))


@pytest.mark.parametrize("before", [b"a = 1\r\nb = 2\r\n", b"a = 1\nb = 2\n", b"a = 1\r", b""])
@pytest.mark.parametrize(
    "after", [b"a = 1\r\nb = 3\r\n", b"a = 1\n\rb = 3", b"\r", "ä = 1\n".encode("latin-1")]
)
def test_line_ends_and_bytes_return_as_they_were(
    platform: Platform, repository: Path, before: bytes, after: bytes
) -> None:
    """A difference that was read as text lost its carriage returns: it did not apply, or gave another file."""
    changed, new = repository / "code" / "model.py", repository / "code" / "new.py"
    changed.write_bytes(before)
    git(repository, *WHO, "commit", "-qam", "line ends")
    changed.write_bytes(after)
    new.write_bytes(after)
    with recorded_tree(platform, launched(platform, repository), repository) as tree:
        assert [(tree / "code" / one.name).read_bytes() for one in (changed, new)] == [after, after]


def test_code_that_git_ignores_is_named(platform: Platform, repository: Path) -> None:
    """The record said that the tree was clean, and the restored code lacked a module."""
    git(repository, "add", "--all")
    git(repository, *WHO, "commit", "-qm", "second")
    (repository / ".git" / "info" / "exclude").write_text("local.py\n")
    (repository / "code" / "local.py").write_text("layers = 3\n")
    launch = launched(platform, repository)
    with (
        pytest.raises(CodeNotRestored, match=r"code/local.py \(git ignores it\)"),
        recorded_tree(platform, launch, repository),
    ):
        raise AssertionError


def files_of(folder: Path, name: str) -> dict[str, bytes]:
    """Path → content of the files under `folder / name`."""
    return {str(path): path.read_bytes() for path in (folder / name).rglob("*") if path.is_file()}


def test_a_project_in_a_subfolder_of_a_repository_returns(platform: Platform, repository: Path) -> None:
    """A secret in it stays out of the record, and a change beside it is not the project's."""
    project = repository / "code"
    (project / "pack").mkdir()
    (project / "pack" / "a.py").write_text("a = 1\n")
    git(repository, "add", "--all")
    git(repository, *WHO, "commit", "-qm", "pack")
    (repository / "beside.py").write_text("b = 1\n")
    assert not code_state(project, None).is_dirty
    (project / "pack" / "a.py").write_text("a = 2\n")
    launch = launched(platform, project)
    with recorded_tree(platform, launch, project) as tree:
        assert (tree / "pack" / "a.py").read_text() == "a = 2\n"
    (project / "pack" / "a.py").write_text(f"token = '{TOKEN_PREFIX}{'s3cret' * 6}'\n")
    found = code_state(project, None)
    assert (found.difference, [one.file for one in found.left_out]) == (b"", ["pack/a.py"])


def test_the_command_has_the_settings_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Relative paths mean files of this folder, not of the tree. The tree comes before `PYTHONPATH`."""
    for name in ("tree", "own"):
        (tmp_path / name / "ml_assets").mkdir(parents=True)
        (tmp_path / name / "ml_assets" / "__init__.py").touch()
    (tmp_path / "own" / "mine.py").touch()
    (tmp_path / "tree" / "ml_assets" / "cli.py").write_text(
        "import json, os, mine\n\ndef main():\n    print(json.dumps(dict(os.environ)))\n"
    )
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "PYTHONPATH": "own",
        "ML_ASSETS_SIGNING_KEY": "keys/signing.pem",
        "ML_ASSETS_LEDGER_URL": "sqlite:///ledger.db?timeout=5",
        "ML_ASSETS_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "GIT_DIR": "elsewhere",
    }.items():
        monkeypatch.setenv(name, value)
    assert run_in(tmp_path / "tree", Path(sys.executable), Path("home"), []) == 0
    seen = json.loads(capfd.readouterr().out)
    assert seen["PYTHONPATH"] == f"{tmp_path}/tree:{tmp_path}/own"
    assert seen["ML_ASSETS_HOME"] == f"{tmp_path}/home"
    assert seen["ML_ASSETS_SIGNING_KEY"] == f"{tmp_path}/keys/signing.pem"
    assert seen["ML_ASSETS_LEDGER_URL"] == f"sqlite:///{tmp_path}/ledger.db?timeout=5"
    assert seen["ML_ASSETS_TRACKING_URI"] == f"sqlite:///{tmp_path}/mlflow.db"
    assert "GIT_DIR" not in seen


def test_a_commit_that_the_repository_lacks_is_named(platform: Platform, repository: Path) -> None:
    with (
        pytest.raises(
            CodeNotRestored, match=rf"has no commit {'c' * 40}: .* `git fetch origin {'c' * 40}` may"
        ),
        recorded_tree(platform, launch_record(), repository),
    ):
        raise AssertionError


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"commit": ""}, "recorded no git commit"),
        ({"is_dirty": True}, "the difference is not recorded"),
        (
            {"left_out": (LeftOut(file="code/key.py", why="holds a token"),)},
            r"did not record code/key.py \(holds",
        ),
    ],
)
def test_code_that_was_not_recorded_is_refused(
    platform: Platform, repository: Path, facts: dict[str, object], told: str
) -> None:
    launch = launch_record(**{"commit": git(repository, "rev-parse", "HEAD").strip(), **facts})
    with pytest.raises(CodeNotRestored, match=told), recorded_tree(platform, launch, repository):
        raise AssertionError


def test_a_folder_without_git_is_told(platform: Platform, tmp_path: Path) -> None:
    with (
        pytest.raises(CodeNotRestored, match="in a git work tree"),
        recorded_tree(platform, launch_record(), tmp_path),
    ):
        raise AssertionError
