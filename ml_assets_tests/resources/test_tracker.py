"""One MLflow run per fingerprint: found again, never doubled, never left RUNNING, complete after outages.

Outages are made by taking a table away from the real database, and giving it back.
"""

import hashlib
import json
import re
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resources.artifacts import FolderArtifacts
from resources.artifacts.s3 import RemoteArtifacts
from resources.environment import device_facts, environment_facts
from resources.job.errors import Diverged
from resources.tracking.mlflow_client import TrackerRefused, TrackerUnavailable, open_client, page_of
from resources.tracking.sink import GONE_AFTER, SpoolCopies
from resources.tracking.tracker import RunFacts, TrackedRun, Tracker

FACTS = RunFacts(
    experiment="flight_delay",
    fingerprint="f1" * 32,
    name="2013-12-31",
    author="ada",
    params={"learning_rate": 1e-3, "layers": [64, 32]},
    tags={"partition": "2013-12-31"},
    note="first try",
    dataset_name="flight_delay/training_set",
    dataset_digest="d" * 64,
)


@pytest.fixture
def tracker(tracking_uri: str, tmp_path: Path) -> Tracker:
    return Tracker(tracking_uri, tmp_path / "artifacts", (tmp_path / "artifacts" / "mlflow").as_uri())


def _run(tracker: Tracker, run_id: str) -> Any:
    return open_client(tracker.uri).get_run(run_id)


def _steps(tracker: Tracker, run_id: str, metric: str) -> list[int]:
    return [point.step for point in open_client(tracker.uri).get_metric_history(run_id, metric)]


def _execute(tracker: Tracker, statement: str) -> None:
    with closing(sqlite3.connect(tracker.uri.removeprefix("sqlite:///"), timeout=30)) as database:
        database.execute(statement)
        database.commit()


def _take_away(tracker: Tracker, table: str = "metrics") -> None:
    _execute(tracker, f"ALTER TABLE {table} RENAME TO taken_away")


def _give_back(tracker: Tracker, table: str = "metrics") -> None:
    _execute(tracker, f"ALTER TABLE taken_away RENAME TO {table}")


def test_a_run_holds_what_was_said_about_it(tracker: Tracker) -> None:
    with tracker.start(FACTS) as run:
        assert _run(tracker, run.run_id).info.status == "RUNNING"
        run.log({"loss": 0.7}, 1)
        run.log({"loss": 0.6, "speed (rows/s)": 1e6}, 2)
    stored = _run(tracker, run.run_id)
    assert stored.info.status == "FINISHED"
    assert stored.info.run_name == "2013-12-31"
    assert stored.data.params == {"learning_rate": "0.001", "layers": "[64, 32]"}
    assert stored.data.metrics == {"loss": 0.6, "speed _rows/s_": 1e6}
    assert stored.data.tags["fingerprint"] == FACTS.fingerprint
    assert stored.data.tags["mlflow.user"] == "ada"
    assert stored.data.tags["mlflow.note.content"] == "first try"
    assert stored.data.tags["dataset_digest"] == "d" * 64
    (used,) = stored.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("flight_delay/training_set", "d" * 36)


def test_the_same_fingerprint_is_the_same_run_and_keeps_its_parameters(tracker: Tracker) -> None:
    with tracker.start(FACTS) as first:
        first.log({"loss": 0.7}, 10)
    later = replace(FACTS, params={"learning_rate": 9.9, "workers": 2}, tags={"dagster_run_id": "r2"})
    with tracker.start(later) as second:
        second.log({"loss": 0.7}, 10)  # a resumed training repeats steps since its checkpoint
        second.log({"loss": 0.5}, 20)
    assert second.run_id == first.run_id
    stored = _run(tracker, first.run_id)
    assert stored.data.params == {"learning_rate": "0.001", "layers": "[64, 32]", "workers": "2"}
    assert stored.data.tags["dagster_run_id"] == "r2"
    assert len(stored.inputs.dataset_inputs) == 1
    assert _steps(tracker, first.run_id, "loss") == [10, 20]
    assert tracker.find("flight_delay", FACTS.fingerprint) == first.run_id
    assert tracker.find("flight_delay", "0" * 64) is None
    assert tracker.find("nobody", FACTS.fingerprint) is None


def _told(tracker: Tracker, run_id: str, what: str) -> list[str]:
    """Tags of the starts of a run, oldest start first."""
    tags = _run(tracker, run_id).data.tags
    return [value for name, value in sorted(tags.items()) if name.startswith(f"{what}/")]


def test_a_later_start_overwrites_nothing_of_the_first(tracker: Tracker) -> None:
    """A second start replaced commit, world size and lock; a cancelled one turned FINISHED into KILLED."""
    made = {"mlflow.source.git.commit": "a" * 40, "world_size": "2", "lock_sha256": "b" * 64}
    now = {"mlflow.source.git.commit": "c" * 40, "world_size": "4", "lock_sha256": "d" * 64, "gpu": "H100"}
    with tracker.start(replace(FACTS, tags=made)) as first:
        pass
    ended = _run(tracker, first.run_id).info.end_time
    second = tracker.start(replace(FACTS, tags=now, note="another", name="x"))
    assert _run(tracker, second.run_id).info.status == "FINISHED"
    second.finish("KILLED")
    stored = _run(tracker, first.run_id)
    assert {name: stored.data.tags[name] for name in made} == made
    assert (stored.info.status, stored.info.end_time, stored.info.run_name) == ("FINISHED", ended, FACTS.name)
    assert stored.data.tags["mlflow.note.content"] == "first try"
    starts = sorted(map(json.loads, _told(tracker, first.run_id, "start")), key=lambda one: one["world_size"])
    assert starts == [{"author": "ada", **made}, {"author": "ada", **now}]
    assert sorted(_told(tracker, first.run_id, "ended")) == ["FINISHED", "KILLED"]


def test_a_cancelled_start_leaves_the_run_to_the_other_one(tracker: Tracker) -> None:
    with tracker.start(FACTS) as leads:
        tracker.start(FACTS).finish("KILLED")
        assert _run(tracker, leads.run_id).info.status == "RUNNING"
    assert _run(tracker, leads.run_id).info.status == "FINISHED"


def test_readings_at_one_step_are_all_kept_and_told_again_are_stored_once(tracker: Tracker) -> None:
    """MLflow showed the speed of the last few steps for that of the whole training, both told at its last step."""
    speed = "training_throughput_samples_per_sec"

    def tell(run: TrackedRun) -> None:
        for at, step in ((1, 10), (2, 20), (3, 10), (4, 20)):  # trained again from 0
            run.log({speed: 3848.0 + at}, step, at=1e9 + at)
        for at in range(5):
            run.log({"memory": float(at)}, 20, at=1e9 + at, once_a_step=False)
        run.log({speed: 1380.0}, 20, at=1e9 + 5, once_a_step=False)

    for _ in range(2):
        with tracker.start(FACTS) as run:
            tell(run)
    stored = _run(tracker, run.run_id).data.metrics
    assert stored[speed] == 1380.0
    assert _steps(tracker, run.run_id, speed) == [10, 20, 20]
    assert _steps(tracker, run.run_id, "memory") == [20] * 5


def test_a_run_started_without_the_tracker_is_complete_later(tracker: Tracker) -> None:
    """The tracker is away when the run starts. Once it is back, nothing is missing."""
    open_client(tracker.uri)
    _take_away(tracker, "experiments")
    with tracker.start(FACTS) as run:
        run.log({"loss": 0.5}, 1)
        with pytest.raises(TrackerUnavailable, match="ML_ASSETS_TRACKING_URI"):
            _ = run.run_id
    with tracker.start(replace(FACTS, fingerprint="f2" * 32)) as meets:
        _give_back(tracker, "experiments")
        meets.log({"loss": 0.7}, 1)
    assert tracker.settle() == [run.run_id]
    for one in (run, meets):
        stored = _run(tracker, one.run_id)
        assert (stored.info.status, stored.data.tags["partition"]) == ("FINISHED", "2013-12-31")
        assert stored.data.params == {"learning_rate": "0.001", "layers": "[64, 32]"}
        assert _steps(tracker, one.run_id, "loss") == [1]
    assert list((tracker._folder / "spool").glob("*.jsonl")) == []


def test_the_id_of_a_run_that_began_late_brings_what_it_left(tracker: Tracker) -> None:
    open_client(tracker.uri)
    _take_away(tracker, "experiments")
    with tracker.start(FACTS) as run:
        run.log({"loss": 0.5}, 1)
    _give_back(tracker, "experiments")
    assert _run(tracker, run.run_id).info.status == "FINISHED"
    assert _steps(tracker, run.run_id, "loss") == [1]


def test_a_deleted_experiment_does_not_stop_its_pipeline(tracker: Tracker) -> None:
    with tracker.start(FACTS) as run:
        pass
    client = open_client(tracker.uri)
    client.delete_experiment(client.get_experiment_by_name("flight_delay").experiment_id)
    with tracker.start(replace(FACTS, fingerprint="f2" * 32)) as other:
        other.log({"loss": 0.5}, 1)
    assert client.get_experiment_by_name("flight_delay").lifecycle_stage == "active"
    assert _run(tracker, other.run_id).info.status == "FINISHED"
    assert tracker.find("flight_delay", FACTS.fingerprint) == run.run_id


@pytest.mark.parametrize("server", ["http://mlflow.example", "postgresql://ada@mlflow.example/mlflow"])
def test_other_addresses_are_refused_where_they_can_be_moved(
    tracking_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    """`home move` changes none at a server, so trainings go on there, with their files at the place from before."""
    before = Tracker(tracking_uri, tmp_path, "s3://old/mlflow").begin(FACTS, "first")
    with pytest.raises(TrackerRefused, match="ml-assets home move"):
        Tracker(tracking_uri, tmp_path, "s3://new/mlflow").begin(FACTS, "second")
    monkeypatch.setattr("resources.tracking.tracker.open_client", lambda _: open_client(tracking_uri))
    served = Tracker(server, tmp_path, "s3://new/mlflow")
    assert served.begin(FACTS, "second").run_id == before.run_id


def test_a_training_that_is_done_does_not_fail_of_a_full_disk(tracker: Tracker) -> None:
    """Its status needs no room, and the run says which points are missing."""
    with tracker.start(FACTS) as run:
        _take_away(tracker)
        (spool,) = (tracker._folder / "spool").glob("*.jsonl")
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (spool.stat().st_size, limit[1]))
        run.log({"loss": 0.5}, 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert re.findall(r"\d|loss", run.missing) == ["1", "loss", "1", "1"]
    _give_back(tracker)
    assert tracker.settle() == [run.run_id]
    assert _run(tracker, run.run_id).info.status == "FINISHED"
    assert _run(tracker, run.run_id).data.tags["metrics_missing"] == run.missing


def test_starting_at_once_gives_one_run(tracker: Tracker) -> None:
    together = threading.Barrier(4)

    def start() -> str:
        together.wait()
        with tracker.start(FACTS) as run:
            return run.run_id

    with ThreadPoolExecutor(4) as pool:
        ids = {future.result() for future in [pool.submit(start) for _ in range(4)]}
    assert len(ids) == 1
    client = open_client(tracker.uri)
    experiment = client.get_experiment_by_name("flight_delay")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"


def test_two_processes_of_one_training_store_each_point_once(tracker: Tracker) -> None:
    with tracker.start(FACTS) as leads, tracker.start(FACTS) as follows:
        for step in range(1, 21):
            leads.log({"loss": 1 / step}, step, at=1e9 + step)
            follows.log({"loss": 1 / step}, step, at=1e9 + step)
    assert _steps(tracker, leads.run_id, "loss") == list(range(1, 21))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Diverged("loss is nan"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
    ],
)
def test_leaving_by_an_error_ends_the_run(tracker: Tracker, error: BaseException, status: str) -> None:
    with pytest.raises(type(error)), tracker.start(FACTS) as run:
        raise error
    assert _run(tracker, run.run_id).info.status == status


def test_an_outage_loses_nothing_and_doubles_nothing(tracker: Tracker) -> None:
    with tracker.start(FACTS) as run:
        run.log({"loss": 1.0}, 0)
        _take_away(tracker)
        for step in range(1, 2500):
            run.log({"loss": 1.0 / step}, step)
    assert _run(tracker, run.run_id).info.status == "RUNNING"  # its end could not be told
    _give_back(tracker)
    assert tracker.settle() == [run.run_id]
    assert _run(tracker, run.run_id).info.status == "FINISHED"
    assert _steps(tracker, run.run_id, "loss") == list(range(2500))
    assert tracker.settle() == []


def test_points_sent_twice_are_kept_once(tracker: Tracker) -> None:
    with tracker.start(FACTS) as run:
        run.log({"loss": 0.1, "nothing": float("nan")}, 1)
        run.log({"loss": 0.2}, 2)
        _take_away(tracker)
    _give_back(tracker)
    (path,) = (tracker._folder / "spool").glob("*.jsonl")
    kept = path.read_text()
    tracker.settle()
    path.write_text(kept)  # as if the process had been killed between delivering and forgetting
    tracker.settle()
    assert Counter(_steps(tracker, run.run_id, "loss")) == {1: 1, 2: 1}
    assert _steps(tracker, run.run_id, "nothing") == [1]


def test_a_killed_process_leaves_no_running_run_and_its_points_arrive(
    tracker: Tracker, tmp_path: Path
) -> None:
    program = (
        "import sys; from pathlib import Path; from resources.tracking.tracker import *\n"
        f"run = Tracker({tracker.uri!r}, Path({str(tmp_path / 'artifacts')!r})).start("
        f"RunFacts(experiment='flight_delay', fingerprint={FACTS.fingerprint!r}, name='n', author='a'))\n"
        "print(run.run_id, flush=True); sys.stdin.readline()\n"
        "for step in range(50): run.log({'loss': 0.5}, step)\n"
        "sys.stdin.readline()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        run_id = child.stdout.readline().strip()
        _take_away(tracker)
        child.stdin.write("log\n")
        child.stdin.flush()
        (spool,) = (tmp_path / "artifacts" / "spool").glob("*.jsonl")
        deadline = time.monotonic() + 30
        while spool.read_text().count("\n") < 50:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert tracker.settle() == []  # its owner lives
        child.send_signal(signal.SIGKILL)
    finally:
        child.kill()
        child.communicate()
    _give_back(tracker)
    assert _run(tracker, run_id).info.status == "RUNNING"
    with tracker.start(replace(FACTS, fingerprint="f2" * 32)):
        assert _run(tracker, run_id).info.status == "KILLED"
    assert _steps(tracker, run_id, "loss") == list(range(50))
    with tracker.start(FACTS) as again:
        again.log({"loss": 0.5}, 49)
    assert again.run_id == run_id
    assert _run(tracker, run_id).info.status == "FINISHED"
    assert _steps(tracker, run_id, "loss") == list(range(50))


def test_figures_get_names_that_mlflow_takes(tracker: Tracker) -> None:
    """Figures are known by those names after a resume."""
    figures = {"top@5": 0.9, "/heads//1/": 0.5, "../up": 0.4, "n" * 300: 0.3}
    facts = replace(FACTS, params={"model.top@k": 5})
    for steps in ((10, 20), (20, 30)):
        with tracker.start(facts) as run:
            for step in steps:
                run.log(figures, step)
    stored = _run(tracker, run.run_id)
    assert stored.data.metrics == {"top_5": 0.9, "heads/1": 0.5, "up": 0.4, "n" * 250: 0.3}
    assert stored.data.params == {"model.top_k": "5"}
    assert _steps(tracker, run.run_id, "top_5") == [10, 20, 30]


def test_a_run_whose_points_are_refused_is_ended_all_the_same(tracker: Tracker) -> None:
    with tracker.start(FACTS) as run:
        pass
    open_client(tracker.uri).update_run(run.run_id, status="RUNNING")  # as who is killed leaves it
    spool = tracker._folder / "spool" / f"{run.run_id}-left.jsonl"
    spool.write_text('["a//b", 0.1, 1, 1000]\n"FAILED"\n')
    assert tracker.settle() == [run.run_id]
    assert _run(tracker, run.run_id).info.status == "FAILED"
    assert spool.with_suffix(".refused").exists()


def test_what_a_deleted_run_left_is_put_aside(tracker: Tracker) -> None:
    with tracker.start(FACTS) as run:
        run.log({"loss": 0.1}, 1)
        open_client(tracker.uri).delete_run(run.run_id)
    tracker.settle()
    assert [path.suffix for path in (tracker._folder / "spool").glob(f"{run.run_id}*")] == [".refused"]
    with tracker.start(FACTS) as other:
        pass
    assert other.run_id != run.run_id


def test_final_metrics_tags_and_files_are_stored_once(tracker: Tracker, tmp_path: Path) -> None:
    with tracker.start(FACTS) as run:
        pass
    report = tmp_path / "report.html"
    report.write_text("<p>good</p>")
    for _ in range(2):
        tracker.record(run.run_id, {"holdout_auc": 0.73, "holdout auc | carrier=AA": 0.7}, step=100)
        tracker.tag(run.run_id, {"gate_status": "blessed"})
        tracker.attach(run.run_id, report, "evaluation")
    stored = _run(tracker, run.run_id)
    assert stored.info.status == "FINISHED"
    assert stored.data.metrics == {"holdout_auc": 0.73, "holdout auc _ carrier_AA": 0.7}
    assert _steps(tracker, run.run_id, "holdout_auc") == [100]
    assert stored.data.tags["gate_status"] == "blessed"
    (copied,) = (tmp_path / "artifacts" / "mlflow" / "flight_delay").rglob("report.html")
    assert copied.parent.name == "evaluation"


def test_an_unreachable_tracker_is_named_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tracker = Tracker(f"http://ada:secret@127.0.0.1:{port}", tmp_path)
    with pytest.raises(TrackerUnavailable, match=re.escape(f"http://127.0.0.1:{port}")) as caught:
        tracker.find("flight_delay", FACTS.fingerprint)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_an_unknown_run_is_refused(tracker: Tracker) -> None:
    with pytest.raises(TrackerRefused, match="not found"):
        tracker.record("0" * 32, {"auc": 0.5})


def test_environment_names_code_and_packages(tmp_path: Path) -> None:
    for command in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q",
                                     "--allow-empty", "-m", "x"]):  # fmt: skip
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    facts = environment_facts(tmp_path, "f" * 40)
    assert re.fullmatch("[0-9a-f]{40}", facts["mlflow.source.git.commit"])
    assert facts["mlflow.source.git.commit"] != "f" * 40
    assert facts["git_dirty"] == "false"
    (tmp_path / "new.txt").touch()
    assert environment_facts(tmp_path, None)["git_dirty"] == "true"
    assert facts["torch"].startswith("2.")


@pytest.mark.parametrize(
    ("commit", "facts"),
    [
        (None, (None, None)),
        ("", (None, None)),
        ("f" * 40, ("f" * 40, "false")),
        ("f" * 40 + "-dirty", ("f" * 40, "true")),
    ],
)
def test_an_image_tells_its_commit_and_its_lock(
    tmp_path: Path, commit: str | None, facts: tuple[str | None, str | None]
) -> None:
    lock = tmp_path / "deployment" / "images" / "platform.txt"
    lock.parent.mkdir(parents=True)
    lock.write_text("a==1\n")
    told = environment_facts(tmp_path, commit)
    assert (told.get("mlflow.source.git.commit"), told.get("git_dirty")) == facts
    assert told["lock_sha256"] == hashlib.sha256(b"a==1\n").hexdigest()


def test_gpus_and_their_driver_are_named_as_the_driver_tells_them(tmp_path: Path) -> None:
    assert device_facts(tmp_path) == {}
    for number in range(2):
        gpu = tmp_path / "gpus" / f"0000:0{number}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 42\n")
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n"
    )
    assert device_facts(tmp_path) == {"gpu": "NVIDIA H100 80GB HBM3", "gpus": "2", "gpu_driver": "550.54.15"}


def test_pages_are_those_of_a_server_and_show_no_password() -> None:
    assert page_of("https://ada:secret@mlflow.example/", "runs/1f") == "https://mlflow.example/#/runs/1f"
    assert page_of("sqlite:////home/ada/mlflow.db", "runs/1f") is None


# On machines whose disk ends with them


@pytest.fixture
def pod(tracking_uri: str, tmp_path: Path) -> Callable[[str], Tracker]:
    """A tracker of a machine, by name: each has a disk of its own, and all have one store."""
    store = SpoolCopies(FolderArtifacts(tmp_path / "store"))
    return lambda name: Tracker(tracking_uri, tmp_path / name, None, store)


def _copies(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "store" / "spool-copies").glob("*.jsonl"))


def test_what_a_pod_could_not_deliver_is_delivered_by_another(
    pod: Callable[[str], Tracker], tmp_path: Path
) -> None:
    ends, goes_on = pod("one"), pod("two")
    with ends.start(FACTS) as run:
        _take_away(ends)
        run.log({"loss": 0.5}, 1)
    shutil.rmtree(tmp_path / "one")
    _give_back(goes_on)
    assert goes_on.settle() == [run.run_id]
    assert _run(goes_on, run.run_id).info.status == "FINISHED"
    assert _steps(goes_on, run.run_id, "loss") == [1]
    assert _copies(tmp_path) == []


def test_a_pod_that_lives_keeps_its_run_and_one_that_is_silent_loses_it(
    pod: Callable[[str], Tracker], tmp_path: Path
) -> None:
    lives, looks = pod("one"), pod("two")
    run = lives.start(FACTS)
    run.log({"loss": 0.5}, 1)
    deadline = time.monotonic() + 60
    while not _copies(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert looks.settle() == []
    assert _run(looks, run.run_id).info.status == "RUNNING"
    (copy,) = _copies(tmp_path)
    now, *rest = copy.read_text().splitlines(keepends=True)
    copy.write_text("".join([f"{float(now) - GONE_AFTER - 1}\n", *rest]))
    assert looks.settle() == [run.run_id]
    assert _run(looks, run.run_id).info.status == "KILLED"
    run.finish("FINISHED")  # it was not gone, only cut off
    assert _run(looks, run.run_id).info.status == "FINISHED"
    assert _steps(looks, run.run_id, "loss") == [1]
    assert _copies(tmp_path) == []


def test_a_store_of_copies_that_is_away_holds_nothing_up(tracking_uri: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
        store = RemoteArtifacts("s3://bucket", tmp_path / "cache", address, patience_seconds=0.0)
        with Tracker(tracking_uri, tmp_path / "one", None, SpoolCopies(store)).start(FACTS) as run:
            run.log({"loss": 0.5}, 1)
        tracker = Tracker(tracking_uri, tmp_path / "one")
        assert _run(tracker, run.run_id).info.status == "FINISHED"
        assert _steps(tracker, run.run_id, "loss") == [1]
