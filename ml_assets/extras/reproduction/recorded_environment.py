"""Environment of a recorded launch: its code in a scratch folder, and its locked packages in a virtual environment.

Here: the tree of a commit with what differed from it, and a command that runs with it. uv installs packages, as it does
in `deployment/setup.sh`: from its cache or the configured index, each checked by its SHA-256. An environment is kept in
the cache of the home under the lock's SHA-256. Not here: the comparison of code and packages with those of the launch
(`reproduce`), which the restored code makes itself.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

from ml_assets.foundation.checkout import ROOT
from ml_assets.model.steps.train import DIFFERENCE, LOCK, LaunchRecord, source
from ml_assets.model.training.process.stop import end_with_parent
from resources.environment import without_repository
from resources.files import locked
from resources.platform import Platform

_SETTINGS = f"""[core]
hooksPath = {os.devnull}
autocrlf = false
attributesFile = {os.devnull}
[safe]
directory = *
"""
"""Settings of git here instead of those of the person and the machine, which may change bytes or run hooks. The
repository's owner is not checked: this process already runs its code."""
_DATABASES = ("ML_ASSETS_LEDGER_URL", "ML_ASSETS_TRACKING_URI", "ML_ASSETS_DAGSTER_URL")
_SQLITE = re.compile(r"(?P<scheme>sqlite(\+\w+)?:///)(?P<path>[^/:?][^?]*)(?P<rest>.*)")
"""Address of SQLite with a relative path. Four slashes begin an absolute one."""


class CodeNotRestored(Exception):
    """The code of a launch cannot be restored here. The message has the reason and the remedy."""


@contextmanager
def recorded_tree(platform: Platform, launch: LaunchRecord, repository: Path = ROOT) -> Generator[Path]:
    """Yield a scratch folder with the code of `launch`: its commit, and on top what differed from it.

    `repository` is the project's folder in a git work tree that has the commit. Nothing in it changes. The yielded
    folder is the same one in the scratch tree. No settings, filters and hooks of the person or the machine apply.
    Raises `CodeNotRestored` and `LaunchUnknown`.
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
            f"its code differed from commit {commit}, and the difference is not recorded: it ran outside of a git work "
            "tree, git failed there, or a submodule differed. --with-this-code trains with what is here"
        )
    if _git(repository, "cat-file", "-e", f"{commit}^{{commit}}").returncode:
        raise CodeNotRestored(
            f"{repository} has no commit {commit}: run reproduce in a git work tree that has it; `git fetch origin "
            f"{commit}` may bring it"
        )
    with tempfile.TemporaryDirectory(prefix="ml-assets-", ignore_cleanup_errors=True) as scratch:
        tree = Path(scratch) / "code"
        root, prefix = (_told(repository, "rev-parse", f"--show-{what}") for what in ("toplevel", "prefix"))
        # A clone that borrows the objects: `git worktree` would write into the repository. Without a template, as one
        # of the machine may have hooks.
        clone = ("clone", "--quiet", "--shared", "--no-checkout", "--template=", root, str(tree))
        _told(repository, *clone)
        _told(tree, "checkout", "--quiet", "--detach", commit)
        if launch.difference:
            difference = Path(scratch) / DIFFERENCE
            difference.write_bytes(source(platform, launch.difference, DIFFERENCE))
            # Into the index, too: new files that git knew then are known again.
            _told(tree, "apply", "--index", "--whitespace=nowarn", str(difference))
        yield tree / prefix


def run_in(tree: Path, interpreter: Path, home: Path, arguments: Sequence[str]) -> int:
    """Run `ml-assets ARGUMENTS` with the code of `tree`; return its exit status. Its output goes to ours.

    The command has the settings of this process, with absolute paths, and its `PYTHONPATH` behind `tree`. It
    ends with this process, and Ctrl-C reaches this process only.
    """
    also = [str(Path(one).absolute()) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    searched = os.pathsep.join([str(tree), *also])
    with tempfile.TemporaryDirectory(prefix="ml-assets-", ignore_cleanup_errors=True) as scratch:
        return subprocess.run(
            [interpreter, "-c", "from ml_assets.cli import main; main()", *arguments],
            cwd=tree,
            # A killed command leaves its own temporary folders in this one.
            env=without_repository(os.environ)
            | _absolute_settings()
            | {"PYTHONPATH": searched, "ML_ASSETS_HOME": str(home.resolve()), "TMPDIR": scratch},
            start_new_session=True,
            preexec_fn=partial(end_with_parent, parent=os.getpid()),
            check=False,
        ).returncode


def _absolute_settings() -> dict[str, str]:
    """Return the settings that name a file by a relative path, with the absolute one."""
    found: dict[str, str] = {}
    for name, value in os.environ.items():
        if name == "ML_ASSETS_SIGNING_KEY" and value:
            found[name] = str(Path(value).absolute())
        elif name in _DATABASES and (file := _SQLITE.fullmatch(value)):
            found[name] = f"{file['scheme']}{Path(file['path']).absolute()}{file['rest']}"
    return found


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    with tempfile.NamedTemporaryFile("w", prefix="ml-assets-", suffix=".gitconfig") as settings:
        # A file, because `git clone` takes settings of its command line from the process that reads the source.
        settings.write(_SETTINGS)
        settings.flush()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
            "GIT_CONFIG_GLOBAL": settings.name,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
        }
        try:
            return subprocess.run(
                ["git", *arguments],
                cwd=folder,
                env=environment,
                capture_output=True,
                encoding="utf-8",
                errors="surrogateescape",  # names of files are bytes
                check=False,
            )
        except FileNotFoundError:
            raise CodeNotRestored("git is not installed here: install it") from None


def _told(folder: Path, *arguments: str) -> str:
    """Return the output of a command of git, without the last line end. Raises `CodeNotRestored` if it fails."""
    done = _git(folder, *arguments)
    if done.returncode:
        told = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CodeNotRestored(f"{' '.join(done.args[:2])} ended with exit status {done.returncode}: {told}")
    return done.stdout.removesuffix("\n")


_COMPLETE = "ml-assets-complete"
"""File of an environment that is written last."""


class PackagesNotRestored(Exception):
    """The packages of a launch cannot be installed here. The message has the reason and the remedy."""


def locked_interpreter(platform: Platform, launch: LaunchRecord) -> Path:
    """Return the Python of an environment with the locked packages of `launch`, and install them if it is new.

    Raises `PackagesNotRestored` and `LaunchUnknown`.
    """
    if not launch.lock:
        raise PackagesNotRestored(
            "its launch recorded no locked requirements. Without --environment it trains with the packages here"
        )
    content = source(platform, launch.lock, LOCK)
    folder = platform.settings.cache_folder / "environments" / f"{launch.lock[:16]}-{launch.python}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not (folder / _COMPLETE).is_file():
            lock = folder.with_name(f"{folder.name}.txt")
            lock.write_bytes(content)
            _install(folder, lock, launch.python)
        (folder / _COMPLETE).touch()  # its time is that of the last use
    return folder / "bin" / "python"


def unused_packages(platform: Platform, before: datetime) -> dict[Path, int]:
    """Return folder → bytes of the environments that were last used before `before`. They can be installed again."""
    folder = platform.settings.cache_folder / "environments"
    found = [one for one in sorted(folder.glob("*")) if one.is_dir()] if folder.is_dir() else []
    return {
        one: sum(file.lstat().st_size for file in one.rglob("*") if not file.is_dir())
        for one in found
        if max((one / name).stat().st_mtime for name in (".", _COMPLETE) if (one / name).exists())
        < before.timestamp()
    }


def remove_packages(folder: Path) -> None:
    """Delete an environment. Wait for a process that installs it."""
    with locked(folder.with_name(f"{folder.name}.lock")):
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_name(f"{folder.name}.txt").unlink(missing_ok=True)


def _install(folder: Path, lock: Path, python: str) -> None:
    here = ".".join(map(str, sys.version_info[:3]))
    interpreter = sys.executable if python == here else python
    _uv("venv", "--clear", "--no-python-downloads", "--python", interpreter, folder)
    strict = ("--require-hashes", "--require-build-hashes", "--strict")
    _uv("pip", "sync", *strict, "--python", folder, lock, lock=lock)


def _uv(*arguments: str | Path, lock: Path | None = None) -> None:
    searched = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if (program := shutil.which("uv", path=searched)) is None:
        raise PackagesNotRestored("uv is not installed here: run `make setup`, which installs it")
    # Packages that are built from source are built with locked tools, too.
    building = (
        {}
        if lock is None
        else {"UV_BUILD_CONSTRAINT": str(lock), "UV_PREVIEW_FEATURES": "build-dependency-hashes"}
    )
    done = subprocess.run(
        [program, *arguments, "--quiet"],
        env=os.environ | building,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PackagesNotRestored(
            f"{' '.join(map(str, ('uv', *arguments)))} ended with exit status {done.returncode}: "
            f"{done.stderr.strip() or 'no message'}\nCheck that the index of packages answers and still has them"
        )
