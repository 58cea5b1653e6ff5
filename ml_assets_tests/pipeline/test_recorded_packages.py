"""Locked packages of a launch in an environment of their own, from wheels in a folder."""

import hashlib
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from ml_assets.extras.reproduction.recorded_environment import PackagesNotRestored, locked_interpreter
from ml_assets.model.steps.train import LOCK, SOURCES, LaunchRecord
from ml_assets_tests.pipeline.launch_records import launch_record
from resources.platform import Platform
from resources.settings import Settings


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    return Platform(Settings(home=tmp_path / "home"))


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The wheel of a package `tiny`, in the only place where uv finds packages."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, value in {
        "UV_FIND_LINKS": folder,
        "UV_OFFLINE": "1",
        "UV_NO_INDEX": "1",
        "UV_CACHE_DIR": tmp_path / "uv",
        "UV_NO_CONFIG": "1",
    }.items():
        monkeypatch.setenv(name, str(value))
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    about = "tiny-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("tiny.py", "ANSWER = 42\n")
        made.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        made.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(
            f"{about}/RECORD", f"tiny.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n"
        )
    return wheel


def launched(platform: Platform, sha256: str) -> LaunchRecord:
    """Return a launch whose lock names `tiny` with this SHA-256."""
    lock = f"tiny==1.0 \\\n    --hash=sha256:{sha256}\n".encode()
    digest = hashlib.sha256(lock).hexdigest()
    with platform.artifacts.create(f"{SOURCES}/{digest}", LOCK) as stream:
        stream.write(lock)
    return launch_record(lock=digest)


def sha_of(wheel: Path) -> str:
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_locked_packages_are_installed_once(platform: Platform, wheel: Path) -> None:
    launch = launched(platform, sha_of(wheel))
    python = locked_interpreter(platform, launch)
    assert python.is_relative_to(platform.settings.cache_folder)
    wheel.unlink()
    assert locked_interpreter(platform, launch) == python
    said = subprocess.run(
        [python, "-c", "import sys, tiny; print(tiny.ANSWER, sys.path[-1])"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == ["42", str(next(python.parent.parent.glob("lib/*/site-packages")))]


def test_an_environment_that_was_not_finished_is_made_again(platform: Platform, wheel: Path) -> None:
    launch = launched(platform, sha_of(wheel))
    python = locked_interpreter(platform, launch)
    (python.parent.parent / "ml-assets-complete").unlink()
    (package,) = python.parent.parent.glob("lib/*/site-packages/tiny.py")
    package.unlink()
    locked_interpreter(platform, launch)
    assert package.is_file()


def test_a_package_with_other_bytes_is_refused_by_name(platform: Platform, wheel: Path) -> None:
    launch = launched(platform, "0" * 64)
    for _ in range(2):
        with pytest.raises(PackagesNotRestored, match=r"(?s)uv pip sync .*tiny.*Check that the index"):
            locked_interpreter(platform, launch)


def test_a_python_that_is_not_here_is_named(platform: Platform, wheel: Path) -> None:
    launch = replace(launched(platform, sha_of(wheel)), python="3.9.99")
    with pytest.raises(PackagesNotRestored, match=r"(?s)uv venv .*3\.9\.99"):
        locked_interpreter(platform, launch)


def test_a_launch_without_a_lock_is_told(platform: Platform) -> None:
    with pytest.raises(PackagesNotRestored, match=r"no locked requirements\. Without"):
        locked_interpreter(platform, launch_record(lock=""))
