"""Environment of a run, as facts for its record: code, interpreter, packages, machine.

Here: reading the facts. Not here: recording them (`tracker`, `ml_assets.model.steps.train`).
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from resources.secrets import holds_secret

_TREE, _IMAGE = Path("deployment/requirements"), Path("deployment/images")
LOCKS = ((_TREE / "dev.txt", _TREE / "data.txt"), (_IMAGE / "platform.txt",))
"""Locked requirements, as paths from the project's root: those of a source tree, and those of an image of the
platform, which has only the second."""
_DIRTY = "-dirty"
_NVIDIA = Path("/proc/driver/nvidia")
"""Folder of NVIDIA's driver with facts on the GPUs. It exists inside containers, too."""
_PACKAGES = ("torch", "polars", "numpy", "mlflow", "dagster")
_BYTES = ("utf-8", "surrogateescape")
"""Encoding of git's input and output as text, which keeps bytes that are not UTF-8."""
_OWN_SETTINGS = ("-c", "core.quotePath=true", "-c", "diff.suppressBlankEmpty=false")
"""Settings of git that change the text of a difference, in place of those of the person and the repository."""
_LARGEST_NEW_FILE = 10 * 2**20
"""Bytes. A larger file that git does not know is data, not code: a difference names it and leaves it out."""
_NOT_CODE = "is neither code nor settings in a folder with Python files of the commit"
_CODE = (".py", ".pyi", ".sql", ".toml", ".yaml", ".yml")
"""Endings of files that a training can read as code or settings."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Changed or new file that a difference names and does not contain."""

    file: str
    why: str
    sha256: str = ""
    """Empty for a file with a secret, one of more than 10 MiB, and one that is not a plain file."""
    may_be_code: bool = True
    """False for a file that no training can read as code or settings."""


@dataclass(frozen=True, kw_only=True)
class CodeState:
    """Code of a source tree: a commit, and what differs from it."""

    commit: str
    """Git commit, 40 hex digits; empty if nothing names one."""
    is_dirty: bool
    """True if files differ from the commit, or git does not know them."""
    difference: bytes = b""
    """Changes, as `git apply` reads them; empty for a clean tree, without a work tree, or if git failed."""
    left_out: tuple[LeftOut, ...] = ()
    """Files that differ and are not in `difference`: they cannot be code, or hold a secret."""


def code_state(project: Path, commit: str | None) -> CodeState:
    """Return the code in `project`. Without a git work tree, that of `commit`, which is `Settings.commit`.

    If git fails, such as for a damaged index, the tree counts as dirty without a difference: nobody knows what differs.
    """
    head = _git(project, "rev-parse", "HEAD")
    if head is None:
        named = commit or ""
        return CodeState(commit=named.removesuffix(_DIRTY), is_dirty=named.endswith(_DIRTY))
    try:
        whole = ("--porcelain", "--untracked-files=normal", "--ignore-submodules=none")
        changed = _told(project, "status", *whole, "--", ".") != ""
        hidden, ignored = _hidden(project), _ignored_code(project)
        if not changed and not hidden and not ignored:
            return CodeState(commit=head, is_dirty=False)
        difference, left_out = _difference(project, hidden, ignored)
    except _GitFailed:
        return CodeState(commit=head, is_dirty=True)
    is_dirty = changed or bool(difference) or bool(left_out)
    return CodeState(commit=head, is_dirty=is_dirty, difference=difference, left_out=left_out)


def lock_of(project: Path) -> bytes | None:
    """Return the locked requirements of `project` as one file; None without a lock file."""
    for files in LOCKS:
        found = [(project / file).read_bytes() for file in files if (project / file).is_file()]
        if found:
            return b"".join(found)
    return None


def installed_packages() -> dict[str, str]:
    """Return name → version of each installed distribution."""
    read = (
        one.metadata for one in metadata.distributions()
    )  # `name` and `version` would parse the file twice
    return {one["Name"]: one["Version"] for one in read if one["Name"]}


def installed_version(package: str) -> str:
    """Return the installed version of `package`; of MLflow that of `mlflow-skinny`, which `mlflow` pins to its own."""
    return metadata.version("mlflow-skinny" if package == "mlflow" else package)


def environment_facts(project: Path, commit: str | None) -> dict[str, str]:
    """Return name → value, for tags of a run. `project` is the root of the source tree; `commit` is `Settings.commit`.

    Without a git work tree and `commit`, the facts on the commit are left out. Without a lock file, its hash is.
    """
    facts = {
        "python": platform.python_version(),
        "machine": machine(),
    }
    for package in _PACKAGES:
        facts[package] = installed_version(package)
    if (lock := lock_of(project)) is not None:
        facts["lock_sha256"] = hashlib.sha256(lock).hexdigest()
    if (code := code_state(project, commit)).commit:
        facts["mlflow.source.git.commit"] = code.commit
        facts["git_dirty"] = "true" if code.is_dirty else "false"
    return facts


def without_repository(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without `GIT_DIR` and the like: hooks of git export them, and they name another repository.

    Settings of git (`GIT_CONFIG…`) and of the package GitPython stay.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("GIT_") or name.startswith(("GIT_CONFIG", "GIT_PYTHON_"))
    }


def machine() -> str:
    """Return this machine in a few words, such as `Linux x86_64, 8 cores`."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def device_facts(driver: Path = _NVIDIA) -> dict[str, str]:
    """Return the model and number of this machine's GPUs and their driver; empty if there is no GPU.

    Each worker calls it on its machine. It does not import torch.
    """
    told = [path.read_text() for path in sorted(driver.glob("gpus/*/information"))]
    models = [match[1].strip() for text in told if (match := re.search(r"^Model:(.*)$", text, re.MULTILINE))]
    if not models:
        return {}
    facts = {"gpu": ", ".join(dict.fromkeys(models)), "gpus": str(len(models))}
    version = driver / "version"
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", version.read_text()) if version.is_file() else None
    return facts | ({"gpu_driver": found[1]} if found else {})


class _GitFailed(Exception):
    """A command of git failed in a work tree."""


def _hidden(project: Path) -> dict[str, str]:
    """Return flag → NUL-separated paths of files whose changes git was told not to look for, as far as they exist."""
    found: dict[str, str] = {}
    tagged = [(one[0], one[2:]) for one in _names(project, "ls-files", "-v")]
    for flag, is_flagged in (("assume-unchanged", str.islower), ("skip-worktree", "Ss".__contains__)):
        # A sparse checkout has the second flag, too, on files that are not there.
        names = [name for tag, name in tagged if is_flagged(tag) and os.path.lexists(project / name)]
        if names:
            found[flag] = "\0".join(names)
    return found


def _ignored_code(project: Path) -> list[str]:
    """Return the files that git ignores and a training can read as code or settings."""
    packages = sorted(_packages(project))
    if not packages:
        return []
    ignored = ("ls-files", "--others", "--ignored", "--exclude-standard")
    names = _names(project, *ignored, "--", *(f":(literal){one}" for one in packages))
    # Python imports nothing from a hidden folder, such as a virtual environment.
    return [
        name
        for name in names
        if Path(name).suffix in _CODE and not any(one[0] == "." for one in Path(name).parts)
    ]


def _packages(project: Path) -> set[str]:
    """Return the top-level folders with Python files of the commit."""
    return {name.partition("/")[0] for name in _names(project, "ls-files", "--", "*/*.py")}


def _difference(
    project: Path, hidden: Mapping[str, str], ignored: Sequence[str]
) -> tuple[bytes, tuple[LeftOut, ...]]:
    """Return what differs from HEAD, with new files of code and settings, and the files that are left out of it.

    Somebody may get the difference in a dossier, so a new file that the training cannot read as code stays out, and so
    does each file with a secret, and each that git ignores: a person keeps it for herself. Works on a copy of the index
    and an object folder of its own, so that nothing in the work tree's git changes. Raises `_GitFailed`.
    """
    index, objects = (
        _told(project, "rev-parse", "--git-path", "index"),
        _told(project, "rev-parse", "--git-path", "objects"),
    )
    packages = _packages(project)
    new = {
        name: _why_not_code(project / name, name.partition("/")[0] in packages)
        for name in _names(project, "ls-files", "--others", "--exclude-standard")
    } | dict.fromkeys(ignored, "git ignores it")
    left_out = [
        LeftOut(file=name, why=why, sha256=_sha(project / name), may_be_code=why != _NOT_CODE)
        for name, why in new.items()
        if why
    ]
    with tempfile.TemporaryDirectory(prefix="ml-assets-") as scratch:
        own = Path(scratch) / "index"
        if (project / index).is_file():
            shutil.copyfile(project / index, own)
        environment = {
            **without_repository(os.environ),
            "GIT_INDEX_FILE": str(own),
            "GIT_OBJECT_DIRECTORY": scratch,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str((project / objects).resolve()),
        }
        for flag, names in hidden.items():
            for action in (f"--no-{flag}", "--add"):
                _told(project, "update-index", action, "-z", "--stdin", environment=environment, text=names)
        _told(project, "add", "--update", "--", ".", environment=environment)
        code = "\0".join(name for name, why in new.items() if not why)
        _told(project, "update-index", "--add", "-z", "--stdin", environment=environment, text=code)
        # Unlike `diff`, `diff-index` does not read settings such as `diff.noprefix`.
        compared = ("diff-index", "--cached", "--full-index", "--no-renames", "HEAD")
        secret = [
            name
            for name in _names(project, *compared, "--relative", "--name-only", environment=environment)
            if any(
                holds_secret(
                    (_git(project, "show", f"{at}:./{name}", environment=environment) or "").encode(*_BYTES)
                )
                for at in ("HEAD", ":0")
            )
        ]
        spared = [f":(exclude,literal){name}" for name in secret]
        found = _told(project, *compared, "--binary", "--", ".", *spared, environment=environment)
    left_out += [LeftOut(file=name, why="holds a private key or a token") for name in secret]
    # A binary difference ends with an empty line, which `_git` takes off and `git apply` needs.
    return (f"{found}\n\n".encode(*_BYTES) if found else b""), tuple(left_out)


def _why_not_code(path: Path, is_in_package: bool) -> str:
    """Return the reason why a new file is left out; empty for code and settings."""
    if path.is_symlink() or not path.is_file():
        return "is not a plain file"
    if path.suffix not in _CODE or not is_in_package:
        return _NOT_CODE
    return "has more than 10 MiB" if path.stat().st_size > _LARGEST_NEW_FILE else ""


def _sha(path: Path) -> str:
    """Return the SHA-256 of a file that may be named by it; see `LeftOut`."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _LARGEST_NEW_FILE:
        return ""
    content = path.read_bytes()
    return "" if holds_secret(content) else hashlib.sha256(content).hexdigest()


def _names(project: Path, *arguments: str, environment: dict[str, str] | None = None) -> list[str]:
    """Return the paths that a command of git lists. Raises `_GitFailed`."""
    command, *rest = arguments
    found = _told(project, command, "-z", *rest, environment=environment)
    return [name for name in found.split("\0") if name]


def _told(project: Path, *arguments: str, environment: dict[str, str] | None = None, text: str = "") -> str:
    """Return the output of a command of git. Raises `_GitFailed`."""
    found = _git(project, *arguments, environment=environment, text=text)
    if found is None:
        raise _GitFailed(arguments)
    return found


def _git(
    project: Path, *arguments: str, environment: dict[str, str] | None = None, text: str = ""
) -> str | None:
    """Return the output of a command of git, with its line ends as they are; None if it fails."""
    try:
        done = subprocess.run(
            ["git", *_OWN_SETTINGS, *arguments],
            cwd=project,
            env=without_repository(os.environ) if environment is None else environment,
            # As bytes: `subprocess` would turn each CR LF of a file into LF, and the difference would not apply.
            input=text.encode(*_BYTES),
            capture_output=True,
            timeout=60,
            check=True,
        )
    except (FileNotFoundError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(*_BYTES).strip("\n")
