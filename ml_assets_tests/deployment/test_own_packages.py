"""`requirements-own.txt`: own packages stay beside the locked ones. Wheels are made here; nothing is downloaded."""

import re
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    venv.create(tmp_path / "venv", with_pip=False)
    return tmp_path / "venv"


def _wheel(folder: Path, name: str, requires: str = "") -> Path:
    """Make a wheel of one empty module."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        needs = f"Requires-Dist: {requires}\n" if requires else ""
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return path


def _install(environment: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    own = environment.parent / "requirements-own.txt"
    own.write_text("\n".join(lines))
    return subprocess.run(
        ["deployment/own-packages.sh", environment, own],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "UV": str(Path(sys.executable).parent / "uv"), "UV_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def _imports(environment: Path, module: str) -> bool:
    done = subprocess.run(
        [environment / "bin" / "python", "-c", f"import {module}"], capture_output=True, check=False
    )
    return done.returncode == 0


def test_a_package_of_ones_own_is_installed(environment: Path) -> None:
    done = _install(environment, str(_wheel(environment.parent, "museum_tools")))
    assert done.returncode == 0, done.stderr
    assert _imports(environment, "museum_tools")


def test_a_package_that_needs_another_version_is_refused(environment: Path) -> None:
    done = _install(environment, str(_wheel(environment.parent, "museum_tools", "polars<0.20")))
    assert done.returncode == 1
    assert "museum-tools==1.0 depends on polars<0.20" in done.stderr.replace("\n", " ")
    assert "requirements-own.txt does not fit the locked packages" in done.stderr
    assert not _imports(environment, "museum_tools")


def test_setup_is_repeated_when_the_file_changes() -> None:
    text = (ROOT / "deployment" / "setup.sh").read_text()
    (wanted,) = [line for line in text.splitlines() if line.startswith("wanted=")]
    assert '"$own"' in wanted
    assert text.index("pip sync") < text.index('own-packages.sh "$venv"') < text.index('>"$venv/.installed"')


def test_packages_of_data_sets_are_installed_without_dependencies() -> None:
    """`make setup` installed them here, after the synchronisation with the lock, which removes them."""
    lock = (ROOT / "deployment" / "requirements" / "data.txt").read_text()
    pins = dict(re.findall(r"^(\S+)==(\S+)", lock, re.MULTILINE))
    assert {name: metadata.version(name) for name in pins} == pins == {"recbole": "1.2.1"}
    needed = {re.split(r"[^\w-]", need)[0] for need in metadata.requires("recbole") or []}
    installed = {item.name.lower() for item in metadata.distributions()}
    assert {"thop", "texttable"} <= needed - installed
