"""Checkpoints on a real S3 server: whole or absent there, whatever is killed, cut off, full or superseded."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ml_assets.model.training.attempt.attempts import record_attempt
from ml_assets.model.training.checkpoint.checkpoints import StoredCheckpoints
from ml_assets.model.training.checkpoint.mirror import Mirror
from ml_assets.model.training.checkpoint.parts import State
from ml_assets.model.training.telemetry.event_log import keep_events
from ml_assets_tests.servers.small_disk import small_disk
from ml_assets_tests.servers.training.conftest import point_at
from ml_assets_tests.servers.training.s3_server import OwnS3Server, running
from ml_assets_tests.training.rank_processes import one_rank, save
from resources.job.errors import StorageFailed

DAMAGES = (
    "state cut off",
    "state replaced",
    "state missing",
    "marker missing",
    "marker cut off",
    "best missing",
)


@pytest.fixture(scope="module", autouse=True)
def _one_rank() -> Iterator[None]:
    with one_rank():
        yield


def state(step: int, numbers: int = 50) -> State:
    return {"parameters": {"weight": torch.full((numbers,), float(step))}, "progress": {"step": step}}


def open_checkpoints(url: str, place: Path, patience: float = 2.0) -> StoredCheckpoints:
    """Open the checkpoints as rank 0 of a new pod: an empty folder, and the store. Begins no attempt."""
    folder = place / "job"
    folder.mkdir(parents=True)
    keep_events(folder)
    return StoredCheckpoints(folder, 3, "f", Mirror(f"{url}/job", folder, patience))


def begin(checkpoints: StoredCheckpoints, number: int = 1) -> StoredCheckpoints:
    """Begin an attempt as a pod does before its first step. `number` counts earlier attempts on other machines."""
    folder = checkpoints.mirror.folder
    for _ in range(number):
        attempt = record_attempt(folder, 0, 2)
    checkpoints.begin(attempt)
    return checkpoints


@pytest.fixture
def first(remote: str, tmp_path: Path) -> StoredCheckpoints:
    """The first attempt's."""
    return begin(open_checkpoints(remote, tmp_path / "first"))


@pytest.fixture
def second(remote: str, tmp_path: Path) -> StoredCheckpoints:
    """Another pod's, with nothing on its disk."""
    return open_checkpoints(remote, tmp_path / "second")


def test_what_one_pod_saved_another_loads(first: StoredCheckpoints, second: StoredCheckpoints) -> None:
    save(first, 10, state(10))
    save(first, 20, state(20), best_step=10)
    assert second.newest_good() == 20
    assert torch.equal(second.load(20)["parameters"]["weight"], torch.full((50,), 20.0))
    assert second.load(10)["progress"]["step"] == 10  # the best one, which the result will be made of


def test_saved_checkpoints_leave_nothing_on_the_disk_of_the_pod(
    first: StoredCheckpoints, second: StoredCheckpoints
) -> None:
    """Parts that were read are removed once they are let go."""
    save(first, 10, state(10), best_step=10)
    save(first, 20, state(20), best_step=10)
    assert [path for path in (first.mirror.folder / "checkpoints").rglob("*") if path.is_file()] == []
    assert second.newest_good() == 20
    parts = (second.mirror.folder / "checkpoints").rglob("*.distcp")
    assert [part.parent.name for part in parts] == ["step-00000020"]  # the best one was examined, and let go
    second.let_go(20)
    assert list((second.mirror.folder / "checkpoints").rglob("*.distcp")) == []


def test_the_newest_three_and_the_best_are_kept_there(first: StoredCheckpoints) -> None:
    for step in range(10, 80, 10):
        save(first, step, state(step), best_step=20 if step >= 20 else 0)
    stored = {file for file in first.mirror.files() if file.startswith("checkpoints/")}
    assert stored == {
        f"checkpoints/step-{step:08d}/{name}"
        for step in (20, 50, 60, 70)
        for name in (".metadata", "__0_0.distcp", "commit.json")
    }
    assert first.steps() == [70, 60, 50, 20]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_falls_back_to_the_one_before_and_gives_way(
    first: StoredCheckpoints, second: StoredCheckpoints, storage: OwnS3Server, remote: str, damage: str
) -> None:
    for step, best in ((10, 10), (20, 20), (30, 20)):
        save(first, step, state(step), best_step=best)
    folder = storage.path(f"{remote}/job/checkpoints")
    content, marker = folder / "step-00000030/__0_0.distcp", folder / "step-00000030/commit.json"
    if damage == "state cut off":
        content.write_bytes(content.read_bytes()[:-1])
    elif damage == "state replaced":  # the server's own checksum is right
        with first.mirror.create("checkpoints/step-00000030/__0_0.distcp") as file:
            file.write(content.read_bytes()[:-1] + b"?")
    elif damage == "state missing":
        content.unlink()
    elif damage == "marker missing":  # what a pod leaves that was killed while it pushed
        marker.unlink()
    elif damage == "marker cut off":
        marker.write_text(marker.read_text()[:20])
    else:
        (folder / "step-00000020/__0_0.distcp").unlink()
    expected = 10 if damage == "best missing" else 20
    assert second.newest_good() == expected
    begin(second, 2)
    save(second, expected + 5, state(expected + 5), best_step=10)
    assert max(path.name for path in folder.iterdir()) == f"step-{expected + 5:08d}"


def test_an_attempt_that_was_superseded_stores_nothing_more(
    first: StoredCheckpoints, second: StoredCheckpoints
) -> None:
    save(first, 10, state(10))
    assert second.newest_good() == 10
    begin(second, 2)
    save(second, 20, state(20))
    with pytest.raises(StorageFailed, match=r"attempt 2 .*other machines"):
        save(first, 15, state(15))
    assert second.newest_good() == 20


def test_a_store_that_is_away_is_named_and_what_it_had_is_whole(
    storage: OwnS3Server, first: StoredCheckpoints, second: StoredCheckpoints
) -> None:
    save(first, 10, state(10))
    storage.kill()
    try:
        with pytest.raises(StorageFailed, match="did not answer") as raised:
            save(first, 20, state(20))
    finally:
        storage.start()
    assert f"127.0.0.1:{storage.port}" in str(raised.value)
    assert second.newest_good() == 10


def test_a_full_disk_under_the_store_keeps_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", 400) as disk, running(disk, tmp_path / "s3.log") as storage:
        point_at(storage, monkeypatch)
        first = begin(open_checkpoints(f"{storage.url}/full", tmp_path / "first"))
        save(first, 10, state(10, 40_000))
        with pytest.raises(StorageFailed, match="stored before are complete"):
            save(first, 20, state(20, 80_000))
        assert open_checkpoints(f"{storage.url}/full", tmp_path / "second").newest_good() == 10


def test_what_half_arrived_is_removed_by_the_next_attempt(
    first: StoredCheckpoints, second: StoredCheckpoints, storage: OwnS3Server, remote: str
) -> None:
    save(first, 10, state(10))
    with first.create(20, "__0_0.distcp") as file:
        file.write(b"half of a checkpoint")
    assert second.newest_good() == 10
    begin(second, 2)
    save(second, 30, state(30))
    folder = storage.path(f"{remote}/job/checkpoints")
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000010", "step-00000030"]


def test_a_full_disk_in_the_pod_is_no_matter_to_checkpoints(tmp_path: Path, remote: str) -> None:
    with small_disk(tmp_path / "disk", 100) as disk:
        first = begin(open_checkpoints(remote, disk))
        save(first, 10, state(10, 40_000))
        assert first.steps() == [10]
        with pytest.raises(OSError, match="No space left"):
            (disk / "fill").write_bytes(bytes(100_000))
        save(first, 20, state(20, 40_000))
        assert first.steps() == [20, 10]
