"""Common parts of all tests: options, and a home no person uses."""

import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import hypothesis
import pytest

from ml_assets_tests.faults.summary import keep, rounds_of, summary

# Several tests run at once. With a thread for each core in each of them, torch waits most of the time for a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

NAMED_ONLY = tuple(
    Path(__file__).parent / name
    for name in (
        "api/end_to_end",
        "browser",
        "cli",
        "cli/end_to_end",
        "cluster",
        "cluster/flights",
        "cluster/platform",
        "cluster/queues",
        "components/end_to_end",
        "dagster_host/processes",
        "drills",
        "features",
        "layouts",
        "release",
        "release_homes",
        "resources/launcher/processes",
        "resources/pool/processes",
        "servers",
        "snapshots",
        "sources",
        "tables",
        "tables/processes",
        "tour",
        "training/processes",
        "tuning/processes",
        "validation",
    )
)

# Shared machines make single examples slow without anything being wrong. In CI the same examples every time.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ml-assets")
    group.addoption("--chaos-rounds", type=int, default=6, help="seeds of every chaos test (default 6)")
    group.addoption("--chaos-report", type=Path, default=None, help="file for a summary; with `-m chaos`")
    group.addoption(
        "--nightly", action="store_true", help="only tests marked nightly, in place of all others"
    )
    group.addoption(
        "--screenshots", type=Path, default=None, help="folder where browser tests leave pictures"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A chaos test takes `chaos_seed` and runs once per round."""
    if "chaos_seed" in metafunc.fixturenames:
        metafunc.parametrize("chaos_seed", range(metafunc.config.getoption("--chaos-rounds")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests marked `nightly` to `.ci/nightly`, which runs only those of a tier."""
    is_nightly: bool = config.getoption("--nightly")
    chosen: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        chosen[(item.get_closest_marker("nightly") is not None) == is_nightly].append(item)
    config.hook.pytest_deselected(items=chosen[False])
    items[:] = chosen[True]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect the slow tiers only where their folder is named, as `make test-journeys` and its like do."""
    if collection_path not in NAMED_ONLY:
        return None
    return None if _is_named(collection_path, config) else True


def _is_named(folder: Path, config: pytest.Config) -> bool:
    asked = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    return any(path.resolve().is_relative_to(folder) for path in asked)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    if (kept := config.getoption("--chaos-report")) is not None:
        lines = summary(rounds_of(terminalreporter.stats))
        terminalreporter.section("chaos")
        terminalreporter.write_line("\n".join(lines))
        keep(lines, kept, config.invocation_params.args)


@pytest.fixture(scope="session", autouse=True)
def _no_home_of_a_person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever a test forgets to place lands in a temporary folder, never in somebody's home."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("ML_ASSETS_", "DAGSTER_", "MLFLOW_"))]:
            patch.delenv(name)
        patch.setenv("ML_ASSETS_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(autouse=True)
def _process_of_one_test() -> Iterator[None]:
    """A command changes its own process: Dagster's home, and what is logged. The tests after it must not find that."""
    home, level = os.environ.get("DAGSTER_HOME"), logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
    if home is None:
        os.environ.pop("DAGSTER_HOME", None)
    else:
        os.environ["DAGSTER_HOME"] = home


@pytest.fixture(scope="session")
def _empty_tracker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with tables and nothing in them: making one takes seconds, a copy milliseconds."""
    from resources.tracking.mlflow_client import open_client

    place = tmp_path_factory.mktemp("mlflow")
    open_client(f"sqlite:///{place / 'made.db'}")
    with (
        closing(sqlite3.connect(place / "made.db")) as made,
        closing(sqlite3.connect(place / "copy.db")) as copy,
    ):
        made.backup(copy)
    return place / "copy.db"


@pytest.fixture
def tracking_uri(tmp_path: Path, _empty_tracker: Path) -> str:
    """The address of an MLflow database of one test's own."""
    shutil.copy(_empty_tracker, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"
