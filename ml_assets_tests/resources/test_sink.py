"""The sink takes metrics without waiting, and each point arrives once and in order whatever happens."""

import resource
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resources.tracking.mlflow_client import TrackerUnavailable
from resources.tracking.sink import MetricSink, Point, Spool, SpoolFailed


class Receiver:
    """Keeps what is delivered; `away` says how many of the next deliveries fail."""

    def __init__(self, away: int = 0) -> None:
        self.points: list[Point] = []
        self.away = away
        self.tries = 0
        self.tried = threading.Condition()

    def __call__(self, points: Sequence[Point]) -> None:
        with self.tried:
            self.tries += 1
            self.tried.notify_all()
            if self.away:
                self.away -= 1
                raise TrackerUnavailable("away")
            self.points += points

    def wait_for(self, tries: int) -> None:
        with self.tried:
            assert self.tried.wait_for(lambda: self.tries >= tries, timeout=20)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool.create(tmp_path / "spool" / "run.jsonl")


def _names_and_steps(points: Sequence[Point]) -> list[tuple[str, float, int]]:
    return [(point.name, point.value, point.step) for point in points]


def test_metrics_arrive_in_order_with_their_time(spool: Spool) -> None:
    receiver = Receiver()
    sink = MetricSink(receiver, spool, interval=0.01)
    before = time.time_ns() // 1_000_000
    for step in range(300):
        sink.log({"loss": 1 / (step + 1), "rate": 3}, step)
    assert sink.close()
    assert _names_and_steps(receiver.points) == [
        point for step in range(300) for point in (("loss", 1 / (step + 1), step), ("rate", 3.0, step))
    ]
    assert all(before <= point.time_ms <= time.time_ns() // 1_000_000 for point in receiver.points)


def test_a_hung_tracker_makes_no_call_wait_and_loses_nothing(spool: Spool) -> None:
    hangs, release = threading.Event(), threading.Event()

    def deliver(points: Sequence[Point]) -> None:
        hangs.set()
        release.wait(30)

    sink = MetricSink(deliver, spool, interval=0.001)
    sink.log({"loss": 0.0}, 0)
    assert hangs.wait(20)
    start = time.perf_counter()
    for step in range(1, 20_001):
        sink.log({"loss": 0.5}, step)
    per_call = (time.perf_counter() - start) / 20_000
    # What is required of a call. On a busy machine this thread is put aside now and then; one that waited for the
    # tracker would take seconds. `claims/training/sink.py` compares it with MLflow's clients.
    assert per_call < 1e-3
    assert not sink.close(timeout=0.05)
    release.set()
    assert [point.step for point in spool.points()] == list(range(20_001))


def test_an_outage_is_spooled_and_replayed_once_in_order(spool: Spool) -> None:
    receiver = Receiver(away=3)
    sink = MetricSink(receiver, spool, interval=0.01)
    for step in range(10):
        sink.log({"loss": float(step)}, step)
        receiver.wait_for(tries=min(step, 4))
    assert sink.close()
    assert [point.step for point in receiver.points] == list(range(10))
    assert spool.is_empty


def test_what_no_try_delivered_waits_in_the_file_for_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    spool = Spool.create(path)
    sink = MetricSink(Receiver(away=10**6), spool, interval=0.01)
    sink.log({"loss": 0.1, "strange": float("inf")}, 7)
    assert not sink.close()
    spool.end("FAILED")
    assert Spool.adopt(path) is None  # its owner still holds it
    spool.close(delete=False)
    adopted = Spool.adopt(path)
    assert adopted is not None
    assert _names_and_steps(adopted.points()) == [("loss", 0.1, 7), ("strange", float("inf"), 7)]
    assert adopted.ending() == "FAILED"
    adopted.close(delete=True)
    assert Spool.adopt(path) is None


@pytest.mark.parametrize(
    "damage",
    [b'["loss", 0.', b'["loss", 0.\n', b"\0" * 40 + b"\n", b"\xff\xfe\n"],
    ids=["cut short by a kill", "cut short and gone on", "zeros after a power cut", "no text"],
)
def test_a_line_that_is_damaged_is_left_out(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b'["loss", 0.5, 1, 1000]\n' + damage)
    adopted = Spool.adopt(path)
    assert adopted is not None
    assert _names_and_steps(adopted.points()) == [("loss", 0.5, 1)]
    assert adopted.ending() is None


def test_steps_that_are_trained_again_are_stored_as_they_were_first(spool: Spool) -> None:
    receiver = Receiver()
    sink = MetricSink(receiver, spool, interval=0.01)
    for at, step in enumerate((10, 20, 30, 20, 30, 40)):  # a rank died after 30: on from the checkpoint of 10
        sink.log({"loss": float(at)}, step, at=float(at))
        receiver.wait_for(tries=1)
    assert sink.close()
    assert [(p.step, p.value, p.time_ms) for p in receiver.points] == [
        (10, 0.0, 0), (20, 1.0, 1000), (30, 2.0, 2000), (40, 5.0, 5000),
    ]  # fmt: skip


def test_readings_of_their_own_all_arrive_whatever_the_step(spool: Spool) -> None:
    """A training stands at step 20 while its machine is measured, and recovers twice from the checkpoint of 10."""
    receiver = Receiver()
    sink = MetricSink(receiver, spool, interval=0.01)
    for at, step in enumerate((20, 20, 20, 10, 10)):
        sink.log({"memory": float(at)}, step, at=float(at), once_a_step=False)
    assert sink.close()
    assert [(p.value, p.step) for p in receiver.points] == [(0, 20), (1, 20), (2, 20), (3, 10), (4, 10)]


@contextmanager
def no_file_grows_beyond(size: int) -> Generator[None]:
    """Simulate a full disk: the system refuses writes beyond `size` bytes of any file of this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_no_sink_and_loses_nothing(spool: Spool) -> None:
    receiver = Receiver(away=3)
    sink = MetricSink(receiver, spool, interval=0.01)
    with no_file_grows_beyond(100):
        for step in range(50):
            sink.log({"loss": 0.5}, step)
        receiver.wait_for(tries=2)
        for step in range(50, 60):
            sink.log({"loss": 0.5}, step)
        receiver.wait_for(tries=4)
    sink.log({"loss": 0.5}, 60)
    assert sink.close()
    assert [point.step for point in receiver.points] == list(range(61))


def test_a_full_disk_keeps_the_points_that_fit_and_names_the_others(tmp_path: Path) -> None:
    """A spool of a small disk kept all points or none, and no word said which were missing."""
    spool = Spool.create(tmp_path / "run.jsonl")
    sink = MetricSink(Receiver(away=10**6), spool, interval=0.01)
    room = spool.path.stat().st_size + 600
    with no_file_grows_beyond(room):
        for step in range(50):
            sink.log({"loss": 0.5}, step)
        with pytest.raises(SpoolFailed, match=r"run\.jsonl: .*Make room"):
            sink.close()
        spool.end("FINISHED", sink.missing)
    kept = [point.step for point in spool.points()]
    assert 5 < len(kept) < 50
    assert kept == list(range(len(kept)))
    assert spool.path.stat().st_size <= room
    spool.close(delete=False)
    adopted = Spool.adopt(spool.path)
    assert adopted is not None
    assert adopted.ending() == "FINISHED"
    assert adopted.missing() == f"{50 - len(kept)} points of loss, steps {len(kept)} to 49"


def test_whatever_a_client_raises_is_tried_again(spool: Spool) -> None:
    receiver = Receiver()

    def deliver(points: Sequence[Point]) -> None:
        if receiver.tries == 0:
            receiver.tries += 1
            raise RuntimeError("a bug of some library")
        receiver(points)

    sink = MetricSink(deliver, spool, interval=0.01)
    sink.log({"loss": 0.5}, 1)
    receiver.wait_for(tries=2)
    assert sink.close()
    assert [point.step for point in receiver.points] == [1]


def test_a_value_that_is_no_number_is_refused_where_it_is_logged(spool: Spool) -> None:
    sink = MetricSink(Receiver(), spool)
    with pytest.raises(ValueError, match="could not convert"):
        sink.log({"loss": "low"}, 1)  # type: ignore[dict-item]
    assert sink.close()


@given(
    outages=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=6),
)
def test_every_point_arrives_once_in_order_whatever_the_outages(
    tmp_path_factory: pytest.TempPathFactory, outages: list[int], steps: list[int]
) -> None:
    spool = Spool.create(tmp_path_factory.mktemp("spool") / "run.jsonl")
    receiver = Receiver()
    sink = MetricSink(receiver, spool, interval=0.0005)
    logged = 0
    for away, count in zip(outages, steps, strict=False):
        receiver.away += away
        for _ in range(count):
            sink.log({"loss": 0.0}, logged)
            logged += 1
    if not sink.close():
        receiver.away = 0
        receiver(spool.points())
    assert [point.step for point in receiver.points] == list(range(logged))
    spool.close(delete=True)
