"""`.ci/check_counts.py` notices tests that were skipped and tests that are gone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[1] / ".ci" / "check_counts.py"
PASSING = "def test_one():\n    pass\n\n\ndef test_two():\n    pass\n"
SKIPPING = "import pytest\n\n\ndef test_one():\n    pytest.skip('not today')\n"


def _check(tmp_path: Path, tests: str, at_least: str, *options: str, folder: str = "lake") -> tuple[int, str]:
    """Really run `tests` as a group named `lake`, then the check; its exit status and output."""
    place = tmp_path / "ml_assets_tests" / folder
    place.mkdir(parents=True)
    (place / "test_merge.py").write_text(tests)
    expected = tmp_path / "expected_counts.toml"
    expected.write_text(f"[at_least]\n{at_least}\n")
    pytest_run = [
        "-m",
        "pytest",
        "-q",
        "--import-mode=importlib",
        "--junitxml=tests.xml",
        "-p",
        "no:cacheprovider",
    ]
    bare = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run([sys.executable, *pytest_run], cwd=tmp_path, env=bare, check=True, capture_output=True)
    done = subprocess.run(
        [sys.executable, CHECK, tmp_path / "tests.xml", expected, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("tests", "at_least", "complaint"),
    [
        pytest.param(PASSING, "lake = 2", None, id="whole"),
        pytest.param(PASSING, "lake = 1", None, id="more than expected"),
        pytest.param(PASSING, "lake = 3", "group 'lake' ran 2 tests, expected at least 3", id="fewer"),
        pytest.param(PASSING, "lake = 2\nfeatures = 1", "group 'features' ran 0 tests", id="vanished"),
        pytest.param(PASSING, "", "group 'lake' is not in", id="not listed"),
        pytest.param(SKIPPING, "lake = 1", "skipped, but no test may be skipped", id="skipped"),
    ],
)
def test_counts_are_checked(tmp_path: Path, tests: str, at_least: str, complaint: str | None) -> None:
    status, said = _check(tmp_path, tests, at_least)
    assert status == (0 if complaint is None else 1)
    assert complaint is None or complaint in said


@pytest.mark.parametrize(
    ("at_least", "complaint"),
    [
        pytest.param("[servers]\nlake = 2", None, id="whole"),
        pytest.param("[servers]\nlake = 3", "group 'lake' ran 2 tests, expected at least 3", id="fewer"),
        pytest.param("servers = 2", "group 'lake' is not in", id="not in its table"),
    ],
)
def test_tests_on_servers_have_a_table_of_their_own(
    tmp_path: Path, at_least: str, complaint: str | None
) -> None:
    table = ("--table", "servers")
    status, said = _check(tmp_path, PASSING, at_least, *table, folder="servers/lake")
    assert status == (0 if complaint is None else 1)
    assert complaint is None or complaint in said


def test_a_table_may_gather_several_folders(tmp_path: Path) -> None:
    status, said = _check(tmp_path, PASSING, "[journeys]\ntour = 3", "--table", "journeys", folder="tour")
    assert status == 1
    assert "group 'tour' ran 2 tests, expected at least 3" in said


def test_raised_numbers_leave_other_tables_alone(tmp_path: Path) -> None:
    status, _ = _check(
        tmp_path,
        PASSING,
        "flow = 7\n[servers]\nlake = 1",
        "--table",
        "servers",
        "--raise",
        folder="servers/lake",
    )
    assert status == 0
    assert (
        tmp_path / "expected_counts.toml"
    ).read_text() == '[at_least]\n"flow" = 7\n[servers]\n"lake" = 2\n'
