"""The core in an environment of its own, without the packages of any extra: a scaffolded pipeline runs in it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ml_assets_tests.tour.pages import BIN, ROOT, Checkout
from resources.extras import EXTRA_OF

pytestmark = pytest.mark.timeout(1500)
"""Two tables of 91 days and a training, in processes of their own: a minute on two idle cores."""

MOST_PACKAGES = 120
"""Packages of the core on Linux, without those of CUDA, which torch brings."""
_OF_CUDA = re.compile("nvidia|cuda|triton")


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the locked packages of the core."""
    folder = tmp_path_factory.mktemp("core")
    python = folder / "bin" / "python"
    lock = ROOT / "deployment" / "requirements" / "core.txt"
    for line in (
        ["venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
        [
            "pip",
            "install",
            "--quiet",
            "--python",
            str(python),
            "--no-deps",
            "--require-hashes",
            "-r",
            str(lock),
        ],
    ):
        subprocess.run([str(BIN / "uv"), *line], check=True)
    return python


def _typed(core: Path, checkout: Checkout, line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(core), "-c", "from ml_assets.cli import main; main()", *line.split()[1:]],
        cwd=checkout.folder,
        env=os.environ
        | {
            "PYTHONPATH": str(checkout.folder),
            "HOME": str(checkout.folder),
            "ML_ASSETS_HOME": str(checkout.folder / ".ml-assets"),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_scaffolded_pipeline_is_trained_and_promoted(core: Path, checkout: Checkout) -> None:
    scaffold = checkout.run("dg", "scaffold", "defs", "ml_assets.components.TrainingPipeline", "energy")
    printed = scaffold.splitlines()
    commands = [line.strip() for line in printed[printed.index("Next:") + 1 :]]
    said = ""
    for line in [*commands, "ml-assets promote energy 1 --reason first", "ml-assets history energy"]:
        done = _typed(core, checkout, line)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        said = done.stdout
    assert "energy" in said
    assert "first" in said
    for line, extra in {"ml-assets ui": "ui", "ml-assets serve energy": "ui"}.items():
        done = _typed(core, checkout, line)
        assert done.returncode == 1
        assert re.fullmatch(
            rf"Error: this needs the package \w+: pip install 'ml-assets\[{extra}\]'\n", done.stderr
        ), done.stderr


def test_the_core_has_few_packages_and_none_of_an_extra(core: Path) -> None:
    listed = "import importlib.metadata as m; print(*sorted(one.name.lower() for one in m.distributions()))"
    names = subprocess.run(
        [str(core), "-c", listed], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len([name for name in names if not _OF_CUDA.search(name)]) <= MOST_PACKAGES
    found = f"import importlib.util as u; print(*[n for n in {list(EXTRA_OF)} if u.find_spec(n)])"
    brought = subprocess.run([str(core), "-c", found], capture_output=True, text=True, check=True).stdout
    assert set(brought.split()) <= {"cryptography", "fsspec", "opentelemetry", "uvicorn", "botocore"}, brought
