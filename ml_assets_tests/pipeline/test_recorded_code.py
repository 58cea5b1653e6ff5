"""Code of a launch in a scratch folder: its commit, and on top what differed from it."""

import hashlib
from pathlib import Path

import pytest

from ml_assets.pipeline.launches import DIFFERENCE, SOURCES, LaunchRecord
from ml_assets.pipeline.recorded_code import CodeNotRestored, recorded_tree
from ml_assets_tests.pipeline.launch_records import launch_record
from ml_assets_tests.resources.test_environment import git
from resources.environment import LeftOut, code_state
from resources.platform import Platform
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
    launch = launched(platform, repository)
    then = code_state(repository, None)
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
        pytest.raises(CodeNotRestored, match="run reproduce in a git work tree that has it"),
        recorded_tree(platform, launch_record(), tmp_path),
    ):
        raise AssertionError
