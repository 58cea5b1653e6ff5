"""Programs from pinned Go modules, built once: `modules/<name>/go.mod` + `go.sum` → a folder of programs.

Here: the build and its cache. The key of the cache is the pinned version and a hash of everything that can change the
result. go.sum makes the toolchain check every download. Not here: running the programs.
"""

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deployment.testbed.testbed_files import locked

MODULES = Path(__file__).parent / "modules"
CACHE_VARIABLE = "ML_ASSETS_BUILD_CACHE"
ERROR_LINES = 40


class BuildFailed(RuntimeError):
    """A module cannot be built. The message names the missing file or program, or quotes the end of the compiler's
    output.
    """


@dataclass(frozen=True)
class Module:
    """Content of one folder of `modules/`."""

    name: str
    folder: Path
    path: str
    """Import path of the module that contains the first `tool` line."""
    version: str
    """Version of that module."""
    tools: tuple[str, ...]
    """Import paths to build. The last part of a path is the name of its program."""
    ldflags: str
    """Content of a file `ldflags` beside go.mod, in one line; empty without one."""
    key: str
    """`<name>-<version>-<hash>`: name of the folder in the cache."""


def read_module(name: str, modules: Path = MODULES) -> Module:
    """Read `modules/<name>`. Raise `BuildFailed` if go.mod, go.sum or a `tool` line is missing."""
    folder = modules / name
    try:
        go_mod, go_sum = ((folder / file).read_text() for file in ("go.mod", "go.sum"))
    except FileNotFoundError as error:
        known = ", ".join(sorted(path.parent.name for path in modules.glob("*/go.mod")))
        raise BuildFailed(
            f"No pinned module {name!r}: {error.filename} is missing. There are: {known}."
        ) from error
    flags = folder / "ldflags"
    ldflags = " ".join(flags.read_text().split()) if flags.exists() else ""
    tools = _entries(go_mod, "tool")
    required = dict(entry.split()[:2] for entry in _entries(go_mod, "require"))
    owners = (
        sorted((path for path in required if f"{tools[0]}/".startswith(f"{path}/")), key=len) if tools else []
    )
    if not owners:
        raise BuildFailed(f"{folder}/go.mod needs a `tool` line and a `require` line of its module.")
    path = owners[-1]
    version = required[path]
    digest = hashlib.sha256("\0".join((go_mod, go_sum, ldflags)).encode()).hexdigest()[:12]
    return Module(name, folder, path, version, tuple(tools), ldflags, f"{name}-{version}-{digest}")


def build(name: str, *, modules: Path = MODULES, say: Callable[[str], None] | None = None) -> Path:
    """Return the folder with the programs of `modules/<name>`; build them first if the cache lacks them.

    Of two calls at once, one builds and the other waits. `say` receives lines on the build and its duration (default:
    standard error). Raise `BuildFailed`.
    """
    tell = say or _to_standard_error
    module = read_module(name, modules)

    def make(_: Path, programs: Path) -> None:
        named = ", ".join(tool.rpartition("/")[2] for tool in module.tools)
        place = cache_folder() / module.key
        tell(f"Building {name} {module.version} ({named}) into {place}; minutes on an empty cache.")
        began = time.monotonic()
        _compile(module, programs)
        megabytes = sum(file.stat().st_size for file in programs.iterdir()) / 1e6
        tell(f"Built {name} {module.version} in {time.monotonic() - began:.0f} s, {megabytes:.0f} MB.")

    return kept(name, module.key, make)


def kept(name: str, key: str, make: Callable[[Path, Path], None]) -> Path:
    """Return the folder `key` of the cache. If it does not exist, `make(scratch, folder)` fills it first, with
    temporary files in `scratch`.

    Of several calls with the same `name`, one makes the missing folder and the others wait. A killed call leaves no
    folder that looks complete.
    """
    folder = cache_folder() / key
    if folder.is_dir():
        return folder
    with locked(cache_folder() / f"{name}.lock"):
        if not folder.is_dir():
            # Written to another name first, then renamed.
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{name}-") as scratch:
                aside = Path(scratch) / "whole"
                aside.mkdir()
                make(Path(scratch), aside)
                aside.rename(folder)
    return folder


def recipe_of(file: Path) -> str:
    """Return the part of a Python file, shell script or Dockerfile that can change its result, for a key of the cache:
    no docstrings, layout or lines of comment. Clearer docstrings rebuilt 5 GB of layers three times in a day.
    """
    if file.suffix != ".py":
        return "\n".join(line for line in file.read_text().splitlines() if not line.lstrip().startswith("#"))
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [one for one in node.body if not _is_docstring(one)]
    return ast.dump(tree)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def cache_folder() -> Path:
    """Return `$ML_ASSETS_BUILD_CACHE`, or ~/.cache/ml-assets/build."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "ml-assets" / "build")


def _compile(module: Module, out: Path) -> None:
    go = shutil.which("go")
    if go is None:
        (needed,) = _entries((module.folder / "go.mod").read_text(), "go")
        raise BuildFailed(
            f"The program `go` is not on PATH: install Go {needed} or newer (https://go.dev/dl)."
        )
    command = [go, "build", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {module.ldflags}".strip()]
    done = subprocess.run(
        [*command, "-o", f"{out}/", *module.tools],
        cwd=module.folder,
        env=os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        ends = "\n".join((done.stdout + done.stderr).splitlines()[-ERROR_LINES:])
        raise BuildFailed(f"{module.name} {module.version} does not build in {module.folder}:\n{ends}")


def _entries(go_mod: str, word: str) -> list[str]:
    """Return the arguments of `word` in go.mod, from single lines and from blocks in parentheses, without comments."""
    blocks = re.findall(rf"^{word}\s*\((.*?)^\)", go_mod, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(rf"^{word}[ \t]+([^(\s].*)$", go_mod, re.MULTILINE)
    return [entry for line in lines if (entry := line.partition("//")[0].strip())]


def _to_standard_error(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
