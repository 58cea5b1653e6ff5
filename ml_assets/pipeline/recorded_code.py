"""Code of a recorded launch, checked out in a scratch folder, and a command that runs with it.

Here: the tree of a commit with what differed from it. Not here: packages (`recorded_packages`), the comparison of code
and packages with those of the launch (`reproduce`), which the restored code makes itself.
"""

import os
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ml_assets.checkout import ROOT
from ml_assets.pipeline.launches import DIFFERENCE, LaunchRecord, source
from ml_assets.training.process.stop import end_with_parent
from resources.platform import Platform


class CodeNotRestored(Exception):
    """The code of a launch cannot be restored here. The message has the reason and the remedy."""


@contextmanager
def recorded_tree(platform: Platform, launch: LaunchRecord, repository: Path = ROOT) -> Generator[Path]:
    """Yield a scratch folder with the code of `launch`: its commit, and on top what differed from it.

    `repository` has to contain the commit. Nothing in it changes. Raises `CodeNotRestored` and `LaunchUnknown`.
    """
    commit = launch.commit
    if not commit:
        raise CodeNotRestored(
            "its launch recorded no git commit: nobody knows its code. --with-this-code trains with what is here"
        )
    if lost := [f"{one.file} ({one.why})" for one in launch.left_out if one.may_be_code]:
        raise CodeNotRestored(
            f"its launch did not record {', '.join(lost)}: check commit {commit} out, put the files there, and run "
            "reproduce --with-this-code in that tree"
        )
    if launch.is_dirty and not launch.difference and not launch.left_out:
        raise CodeNotRestored(
            f"its code differed from commit {commit} and ran outside of a git work tree, so the difference is not "
            "recorded. --with-this-code trains with what is here"
        )
    if _git(repository, "cat-file", "-e", f"{commit}^{{commit}}").returncode:
        raise CodeNotRestored(
            f"{repository} has no commit {commit}: run reproduce in a git work tree that has it; `git fetch origin "
            f"{commit}` may bring it"
        )
    with tempfile.TemporaryDirectory(prefix="ml-assets-", ignore_cleanup_errors=True) as scratch:
        tree = Path(scratch) / "code"
        # A clone that borrows the objects: `git worktree` would write into the repository.
        _require(
            _git(repository, "clone", "--quiet", "--shared", "--no-checkout", str(repository), str(tree))
        )
        _require(_git(tree, "checkout", "--quiet", "--detach", commit))
        if launch.difference:
            difference = Path(scratch) / DIFFERENCE
            difference.write_bytes(source(platform, launch.difference, DIFFERENCE))
            _require(_git(tree, "apply", "--whitespace=nowarn", str(difference)))
        yield tree


def run_in(tree: Path, interpreter: Path, home: Path, arguments: Sequence[str]) -> int:
    """Run `ml-assets ARGUMENTS` with the code of `tree`; return its exit status. Its output goes to ours.

    The command has the settings of this process. It ends with this process, and Ctrl-C reaches this process only.
    """
    with tempfile.TemporaryDirectory(prefix="ml-assets-", ignore_cleanup_errors=True) as scratch:
        return subprocess.run(
            [interpreter, "-c", "from ml_assets.cli import main; main()", *arguments],
            cwd=tree,
            # A killed command leaves its own temporary folders in this one.
            env=os.environ
            | {"PYTHONPATH": str(tree), "ML_ASSETS_HOME": str(home.resolve()), "TMPDIR": scratch},
            start_new_session=True,
            preexec_fn=partial(end_with_parent, parent=os.getpid()),
            check=False,
        ).returncode


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise CodeNotRestored("git is not installed here: install it") from None


def _require(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        told = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CodeNotRestored(f"{' '.join(done.args[:2])} ended with exit status {done.returncode}: {told}")
