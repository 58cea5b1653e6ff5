"""Pools of this process and of processes of this machine."""

import importlib
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import copytree, rmtree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ml_assets.components.failures import final_unless_transient
from ml_assets_tests.resources.pool.tasks import (
    TwoWordsNeeded,
    Work,
    allocator,
    lock,
    read,
    square,
    squares,
    word,
    write,
)
from resources.lake import LakeBusy
from resources.memory import explained
from resources.pool import (
    Handover,
    TaskFailed,
    TaskNotImportable,
    ThisProcess,
    WorkerDied,
    WorkerHasOtherCode,
    call_of,
    run_call,
)
from resources.pool.code_text import code_here
from resources.pool.exchange import folder_exchange
from resources.pool.processes import ProcessPool
from resources.pool.shared import Shared
from resources.settings import Settings

ROOT = Path(__file__).parents[3]


@pytest.fixture
def pool() -> ProcessPool:
    """Two workers, which start at once."""
    return ProcessPool(2, 0)


@pytest.mark.parametrize("chosen", ["", "narenas:3"])
def test_workers_keep_freed_memory_in_one_place_unless_told_otherwise(
    chosen: str, pool: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_RJEM_MALLOC_CONF", f"dirty_decay_ms:500,{chosen}".rstrip(","))
    told, _ = pool.map(allocator, dict.fromkeys(["one", "two"], "_RJEM_MALLOC_CONF"))
    words = dict(one.split(":") for one in told.split(","))  # the last one of a name counts
    expected = (
        {"narenas": "3", "dirty_decay_ms": "500"} if chosen else {"narenas": "1", "dirty_decay_ms": "5000"}
    )
    assert expected.items() <= words.items()


def test_results_come_in_the_order_of_the_items(pool: ProcessPool, tmp_path: Path) -> None:
    items = squares(7, tmp_path)
    items["number 0"] = replace(items["number 0"], seconds=0.5)
    found = list(pool.map(square, items))
    assert [number for number, _ in found] == [one**2 for one in range(7)]
    assert len({process for _, process in found}) == 2
    assert os.getpid() not in {process for _, process in found}


def test_short_tasks_start_no_worker(tmp_path: Path) -> None:
    found = list(ProcessPool(2, 30).map(square, squares(50, tmp_path)))
    assert {process for _, process in found} == {os.getpid()}


def test_workers_take_over_when_the_rest_will_take_long(tmp_path: Path) -> None:
    found = list(ProcessPool(2, 0.2).map(square, squares(8, tmp_path, seconds=0.1)))
    assert [number for number, _ in found] == [one**2 for one in range(8)]
    here = [process == os.getpid() for _, process in found]
    assert here[0]
    assert not here[-1]


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_killed_workers_change_no_result(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A task that dies runs again: the results are those of one process."""
    count = data.draw(st.integers(1, 8))
    folder = tmp_path_factory.mktemp("marks")
    items = {
        name: replace(work, deaths=data.draw(st.sampled_from([0, 0, 1, 2])))
        for name, work in squares(count, folder).items()
    }
    workers = data.draw(st.integers(1, 3))
    found = [number for number, _ in ProcessPool(workers, 0).map(square, items)]
    assert found == [one**2 for one in range(count)]


def test_a_task_that_always_ends_its_worker_is_named(pool: ProcessPool, tmp_path: Path) -> None:
    items = squares(5, tmp_path)
    items["number 2"] = replace(items["number 2"], deaths=99)
    found: list[int] = []
    with pytest.raises(WorkerDied, match=r"number 2 .* 3 times .*ML_ASSETS_POOL_WORKERS"):
        found.extend(number for number, _ in pool.map(square, items))
    assert found == [0, 1][: len(found)]
    assert len(list(tmp_path.glob("2-*"))) == 3


@pytest.mark.parametrize("where", ["here", "workers"])
def test_a_failure_names_its_task_and_keeps_type_and_message(
    where: str, pool: ProcessPool, tmp_path: Path
) -> None:
    """At the turn of its task: the results before it are there."""
    items = squares(5, tmp_path)
    items["number 3"] = replace(items["number 3"], fault="busy")
    found: list[int] = []
    with pytest.raises(TaskFailed, match="number 3: LakeBusy: the lake is busy") as error:
        found.extend(number for number, _ in (ThisProcess() if where == "here" else pool).map(square, items))
    assert found == [0, 1, 4]
    assert isinstance(error.value.__cause__, LakeBusy)


@pytest.mark.parametrize("where", ["here", "workers"])
@pytest.mark.parametrize(
    ("fault", "said"), [("exit", "SystemExit: 0"), ("panic", "PanicException: index out of bounds")]
)
def test_a_task_that_exits_or_panics_ends_no_run(
    fault: str, said: str, where: str, pool: ProcessPool, tmp_path: Path
) -> None:
    """With code 0 a run would end as if it had succeeded, without its other partitions."""
    items = squares(3, tmp_path)
    items["number 1"] = replace(items["number 1"], fault=fault)
    found: list[int] = []
    with pytest.raises(TaskFailed, match=f"number 1: {said}"):
        found.extend(number for number, _ in (ThisProcess() if where == "here" else pool).map(square, items))
    assert found == [0]


def test_memory_that_ran_out_in_a_worker_is_that_of_the_worker(pool: ProcessPool, tmp_path: Path) -> None:
    """This process holds little, and does not see what is behind the error."""
    with pytest.raises(TaskFailed) as error:
        list(pool.map(square, squares(2, tmp_path, fault="memory")))
    said = explained(str(error.value), error.value)
    held = re.search(r"OutOfMemory: no table\. Its process held ([\d.]+) MB", said)
    assert held is not None
    assert float(held[1]) > 400
    assert said.count("Its process held") == 1


def test_a_result_that_cannot_leave_its_worker_names_its_task(pool: ProcessPool, tmp_path: Path) -> None:
    with pytest.raises(TaskFailed, match="number 0: TypeError: cannot pickle"):
        list(pool.map(lock, squares(2, tmp_path)))


def test_an_error_that_only_a_worker_can_import_is_no_dead_worker(pool: ProcessPool, tmp_path: Path) -> None:
    """The task that found a folder for `sys.path` fails by name, and once."""
    (tmp_path / "vendored_client.py").write_text("class Down(Exception): pass")
    marks = tmp_path / "marks"
    marks.mkdir()
    with pytest.raises(TaskFailed, match="number 0: ModuleNotFoundError: No module named 'vendored_client'"):
        list(pool.map(square, squares(2, marks, fault="vendored")))
    assert len(list(marks.glob("0-*"))) == 1


def test_an_error_that_cannot_travel_keeps_its_name(pool: ProcessPool, tmp_path: Path) -> None:
    with pytest.raises(TaskFailed, match="number 0: TwoWordsNeeded: no rows") as error:
        list(pool.map(square, squares(2, tmp_path, fault="words")))
    assert error.value.__cause__ is None
    with pytest.raises(TaskFailed) as here:
        list(ThisProcess().map(square, squares(1, tmp_path, fault="words")))
    assert isinstance(here.value.__cause__, TwoWordsNeeded)


@pytest.mark.parametrize("where", ["here", "workers"])
def test_a_silent_server_is_one_for_any_pool(where: str, pool: ProcessPool, tmp_path: Path) -> None:
    """A step is tried again by the type of the cause, also if only its base leaves the worker."""
    with (
        pytest.raises(TaskFailed, match="number 0: PortSilent: warehouse:5432 does not answer") as error,
        final_unless_transient(Settings(home=tmp_path)),
    ):
        list((ThisProcess() if where == "here" else pool).map(square, squares(2, tmp_path, fault="silent")))
    assert isinstance(error.value.__cause__, ConnectionError)
    assert str(error.value.__cause__) == "warehouse:5432 does not answer"


def test_a_function_that_no_worker_can_import_is_refused(pool: ProcessPool, tmp_path: Path) -> None:
    """Also where it would run in this process: the same range may need workers tomorrow."""

    def nested(work: Work) -> int:
        return work.number

    for one in (pool, ThisProcess(), ProcessPool(2, 30)):
        for function in (nested, lambda work: work, partial(square)):
            with pytest.raises(TaskNotImportable, match="at the top of a module"):
                list(one.map(function, squares(2, tmp_path)))


def test_a_large_result_leaves_the_worker_as_a_file(pool: ProcessPool, tmp_path: Path) -> None:
    handover = Handover(write, read)
    found = list(pool.map(square, squares(3, tmp_path), handover))
    assert [number for number, _ in found] == [0, 1, 4]
    assert len(list(tmp_path.glob("result-*"))) == 3
    for path in tmp_path.glob("result-*"):
        path.unlink()
    list(ThisProcess().map(square, squares(3, tmp_path), handover))
    assert not list(tmp_path.glob("result-*"))


def test_a_worker_with_other_code_runs_nothing(tmp_path: Path) -> None:
    call = call_of(square, None, "number 1", squares(2, tmp_path)["number 1"])
    assert run_call(call, "ada").get()[0] == 1
    (mark,) = tmp_path.iterdir()
    for name in call.code:
        other = replace(call, item=b"", code={**call.code, name: "another"})
        with pytest.raises(WorkerHasOtherCode, match=rf"{name} has version .* in worker ada and another in"):
            run_call(other, "ada").get()
    assert list(tmp_path.iterdir()) == [mark]


def test_a_call_names_all_code_that_nobody_installed(tmp_path: Path) -> None:
    """A worker that lacks a package of the author, or has another version, would make other rows."""
    call = call_of(square, None, "number 1", squares(2, tmp_path)["number 1"])
    assert {"ml_assets", "resources", "ml_assets_tests", "python", "polars", "numpy"} <= call.code.keys()
    assert not {"dagster", "pytest", "json", "__main__"} & call.code.keys()
    lacked = replace(call, code={**call.code, "shop_of_the_caller": "abc"})
    with pytest.raises(WorkerHasOtherCode, match="shop_of_the_caller has version none in worker ada"):
        run_call(lacked, "ada").get()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["folder is gone", "folder left the path"])
def test_a_module_that_no_worker_would_find_is_no_code_of_a_call(
    pool: ProcessPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Workers were refused because they lacked it, or did not start because it was "edited"."""
    name = f"package_whose_{what.replace(' ', '_')}"
    package = tmp_path / "places" / name
    package.mkdir(parents=True)
    (package / "prices.py").write_text("VAT = 19\n")
    with monkeypatch.context() as path:
        path.syspath_prepend(str(package.parent))
        importlib.import_module(f"{name}.prices")
        assert name in code_here()
        if what == "folder is gone":
            rmtree(package.parent)
            assert name not in code_here()
    (tmp_path / "work").mkdir()
    items = squares(2, tmp_path / "work")
    assert name not in call_of(square, None, "number 1", items["number 1"]).code
    assert {process for _, process in pool.map(square, items)} & {os.getpid()} == set()


def test_closing_the_results_ends_the_workers(pool: ProcessPool, tmp_path: Path) -> None:
    items = squares(6, tmp_path, seconds=60)
    items["number 0"] = replace(items["number 0"], seconds=0)
    with closing(pool.map(square, items)) as results:
        next(results)
        _wait(lambda: len(list(tmp_path.iterdir())) >= 3)
        workers = {int(one.name.split("-")[1]) for one in tmp_path.iterdir()}
        assert all(map(_lives, workers))
    _wait(lambda: not any(map(_lives, workers)))


def test_kept_workers_stay_from_map_to_map_and_end_with_the_block(pool: ProcessPool, tmp_path: Path) -> None:
    with pool.kept() as kept:
        workers = [{process for _, process in kept.map(square, squares(6, tmp_path))} for _ in range(3)]
        assert workers[0] == workers[1] == workers[2]
        assert all(map(_lives, workers[0]))
        assert os.getpid() not in workers[0]
    _wait(lambda: not any(map(_lives, workers[0])))


def test_kept_workers_start_only_for_long_tasks(tmp_path: Path) -> None:
    """Once they are there, short tasks use them, too."""
    with ProcessPool(2, 0.2).kept() as kept:
        short = {process for _, process in kept.map(square, squares(5, tmp_path))}
        assert short == {os.getpid()}
        list(kept.map(square, squares(8, tmp_path, seconds=0.1)))
        assert os.getpid() not in {process for _, process in kept.map(square, squares(5, tmp_path))}


def test_a_failure_leaves_kept_workers_for_the_next_tasks(pool: ProcessPool, tmp_path: Path) -> None:
    """Those in the middle of other tasks of the failed range end."""
    items = squares(6, tmp_path, seconds=600)
    items["number 0"] = replace(items["number 0"], seconds=0, fault="busy")
    with pool.kept() as kept:
        with pytest.raises(TaskFailed, match="number 0: LakeBusy"):
            list(kept.map(square, items))
        workers = {int(one.name.split("-")[1]) for one in tmp_path.iterdir()}
        _wait(lambda: not any(map(_lives, workers)))
        found = list(kept.map(square, squares(4, tmp_path)))
        assert [number for number, _ in found] == [0, 1, 4, 9]
        assert os.getpid() not in {process for _, process in found} | workers


def test_a_kept_range_that_is_left_does_not_disturb_another(pool: ProcessPool, tmp_path: Path) -> None:
    """Each has its own workers, and all of them end with the block."""
    (left := tmp_path / "left").mkdir()
    (whole := tmp_path / "whole").mkdir()
    slow = squares(6, left, seconds=600)
    slow["number 0"] = replace(slow["number 0"], seconds=0)
    with pool.kept() as kept:
        with closing(kept.map(square, squares(6, whole, seconds=0.1))) as second:
            workers = {next(second)[1]}
            with closing(kept.map(square, slow)) as first:
                assert next(first)[0] == 0
                workers.add(next(second)[1])
            found = list(second)
        assert [number for number, _ in found] == [4, 9, 16, 25]
        workers |= {process for _, process in [*found, *kept.map(square, squares(6, whole))]}
    _wait(lambda: not any(map(_lives, workers)))


def test_a_shared_value_travels_once(pool: ProcessPool, tmp_path: Path) -> None:
    """Tasks in this process write no file."""
    with folder_exchange(tmp_path) as exchange:
        before = len(list(tmp_path.rglob("*")))
        shared = Shared(["a word"], exchange)
        list(ThisProcess().map(word, {"number 0": (shared, 0)}))
        assert len(list(tmp_path.rglob("*"))) == before
        found = list(pool.map(word, {f"number {one}": (shared, one) for one in range(6)}))
        assert len(list(tmp_path.rglob("*"))) == before + 1
    assert [word for word, *_ in found] == ["a word"] * 6
    assert len({(process, value) for _, process, value in found}) == len({process for _, process, _ in found})


_SCRIPT = """
import sys
from pathlib import Path
from ml_assets_tests.resources.pool.tasks import square, squares
from resources.pool.processes import ProcessPool

print("begun", flush=True)
seconds = float(sys.argv[2])
print([number for number, _ in ProcessPool(2, 0).map(square, squares(4, Path(sys.argv[1]), seconds=seconds))])
"""


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    """A worker does not run the program again, as Python's own pools do for a script without `__main__`."""
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    marks = tmp_path / "marks"
    marks.mkdir()
    done = subprocess.run(
        [sys.executable, script, marks, "0"], env=_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["begun", "[0, 1, 4, 9]"]


def test_workers_end_when_the_run_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    marks = tmp_path / "marks"
    marks.mkdir()
    run = subprocess.Popen([sys.executable, script, marks, "600"], env=_environment(), stdout=subprocess.PIPE)
    _wait(lambda: len(list(marks.iterdir())) == 2)
    workers = {int(one.name.split("-")[1]) for one in marks.iterdir()}
    run.send_signal(signal.SIGKILL)
    run.communicate()
    _wait(lambda: not any(map(_lives, workers)))


_EDIT = """
from pathlib import Path
from {package} import author
from resources.pool.processes import ProcessPool

pool = ProcessPool(2, 0)
Path(author.__file__).write_text("def version(number): return 2")
print(list(pool.map(author.version, {{"a": 1, "b": 2}})))
"""


@pytest.mark.parametrize("package", ["ml_assets", "shop", "shop.north"])
def test_an_edit_in_the_middle_of_a_run_changes_no_result(package: str, tmp_path: Path) -> None:
    """Records of the run name the code that it began with. A worker would import the edit.

    Pipelines also use modules of an author's own packages, which lie beside the platform.
    """
    copytree(ROOT / "resources", tmp_path / "resources")
    (tmp_path / "ml_assets").mkdir()
    (tmp_path / "ml_assets" / "__init__.py").touch()
    folder = tmp_path.joinpath(*package.split("."))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "author.py").write_text("def version(number): return 1")
    script = tmp_path / "script.py"
    script.write_text(_EDIT.format(package=package))
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["[1, 1]"]


def test_ctrl_c_does_not_wait_for_a_task(tmp_path: Path) -> None:
    """The tasks in progress end, and no other begins."""
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    marks = tmp_path / "marks"
    marks.mkdir()
    run = subprocess.Popen([sys.executable, script, marks, "60"], env=_environment(), stderr=subprocess.PIPE)
    _wait(lambda: len(list(marks.iterdir())) == 2)
    run.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in run.communicate()[1]
    assert len(list(marks.iterdir())) == 2


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def _lives(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _wait(until) -> None:
    while not until():
        time.sleep(0.05)
