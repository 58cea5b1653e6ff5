"""Programs from pinned Java packages, fetched once: `modules/<name>/pom.xml` + `jars.sha256` → a folder of jars.

Here: the download by Maven and its check. The key of the cache is the version and a hash of both files; `build.kept`
holds the folder. Not here: running the programs.
"""

import hashlib
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

from deployment.testbed.build import ERROR_LINES, MODULES, BuildFailed, kept

CHECKSUMS = "jars.sha256"


def jars(name: str, *, modules: Path = MODULES, say: Callable[[str], None] | None = None) -> Path:
    """Return the folder with the jars of `modules/<name>`; Maven downloads them first if the cache lacks them.

    Every jar needs its line in `jars.sha256`, in the format of `sha256sum`. Raise `BuildFailed` if a file or program is
    missing, Maven fails, or the jars differ from the list.
    """
    tell = say or _to_standard_error
    folder = modules / name
    try:
        pom, checksums = ((folder / file).read_text() for file in ("pom.xml", CHECKSUMS))
    except FileNotFoundError as error:
        raise BuildFailed(f"No pinned package {name!r}: {error.filename} is missing.") from error
    version = jar_version(name, modules=modules)
    digest = hashlib.sha256("\0".join((pom, checksums)).encode()).hexdigest()[:12]

    def make(_: Path, found: Path) -> None:
        began = time.monotonic()
        _copy(folder, found)
        _check(folder / CHECKSUMS, found)
        megabytes = sum(file.stat().st_size for file in found.iterdir()) / 1e6
        tell(f"Fetched {name} {version} in {time.monotonic() - began:.0f} s, {megabytes:.0f} MB.")

    return kept(name, f"{name}-{version}-{digest}", make)


def jar_version(name: str, *, modules: Path = MODULES) -> str:
    """Return the version of the first dependency in `modules/<name>/pom.xml`."""
    version = ElementTree.parse(modules / name / "pom.xml").findtext("dependencies/dependency/version")
    if version is None:
        raise BuildFailed(f"{modules / name}/pom.xml needs a dependency with a version.")
    return version


def _copy(folder: Path, out: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise BuildFailed(
            "The program `mvn` is not on PATH: "
            "deployment/install-system-packages.sh deployment/system-packages-servers.txt"
        )
    done = subprocess.run(
        [
            *(maven, "--quiet", "--batch-mode", "--file", folder / "pom.xml"),
            *("dependency:copy-dependencies", f"-DoutputDirectory={out}", "-DincludeScope=runtime"),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        ends = "\n".join((done.stdout + done.stderr).splitlines()[-ERROR_LINES:])
        raise BuildFailed(f"Maven cannot fetch the jars of {folder}/pom.xml:\n{ends}")


def _check(checksums: Path, found: Path) -> None:
    listed = [line.split() for line in checksums.read_text().splitlines()]
    expected = {name: digest for digest, name in listed}
    arrived = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in found.iterdir()}
    if different := sorted(
        name for name in expected.keys() | arrived.keys() if expected.get(name) != arrived.get(name)
    ):
        raise BuildFailed(
            f"The jars differ from {checksums}: {', '.join(different)}. If pom.xml was changed on purpose, "
            "write the list again with `sha256sum *.jar`."
        )


def _to_standard_error(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
