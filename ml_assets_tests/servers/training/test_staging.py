"""Inputs of a pod: each fault is a typed error that says what to do."""

import dataclasses
import os
from pathlib import Path

import pytest

from ml_assets.data.snapshots.split_reader import MANIFEST, Snapshot
from ml_assets.model.training.data.streaming import open_artifacts
from ml_assets.model.training.node.pod import PodSettings, stage
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from ml_assets_tests.training.text_snapshots import text_snapshot
from resources.job.errors import BadConfiguration, InputChanged
from resources.job.job import TrainingJob


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return small_snapshot(tmp_path_factory.mktemp("snapshots"))


@pytest.fixture
def settings(remote: str, snapshot: Snapshot, tmp_path: Path) -> PodSettings:
    """Return the settings of the first of two pods; job and snapshot are in the store."""
    artifacts = open_artifacts(remote, tmp_path / "launcher")
    (artifacts.folder("job") / "job.json").write_text(small_job(snapshot).to_json())
    artifacts.push("job", last="job.json")
    open_artifacts(remote, snapshot.folder.parent).push(snapshot.folder.name, last=MANIFEST)
    return PodSettings.read(
        {
            "TRAINING_FOLDER": f"{remote}/job/",
            "TRAINING_SNAPSHOT": f"{remote}/{snapshot.folder.name}",
            "TRAINING_SCRATCH": str(tmp_path / "scratch"),
            "TRAINING_NODES": "2",
            "TRAINING_RANKS": "1",
            "JOB_COMPLETION_INDEX": "0",
            "MASTER_ADDR": "train-0.train",
            "MASTER_PORT": "29500",
        }
    )


def staged(settings: PodSettings) -> TrainingJob:
    return stage(settings, settings.scratch / "job")


def push_job(settings: PodSettings, tmp_path: Path, text: str) -> None:
    artifacts = open_artifacts(settings.folder.rpartition("/")[0], tmp_path / "launcher")
    (artifacts.folder("job") / "job.json").write_text(text)
    artifacts.push("job", ["job.json"])


def test_a_pod_has_the_job_and_what_is_trained_on_but_not_the_holdout(
    settings: PodSettings, snapshot: Snapshot
) -> None:
    job = staged(settings)
    assert job.fingerprint == small_job(snapshot).fingerprint
    here = {path.name for path in Path(job.snapshot).rglob("*.arrow")}
    assert here == {Path(s.path).name for s in snapshot.shards if s.split != "holdout"}
    assert TrainingJob.from_json((settings.scratch / "job" / "job.json").read_text()) == job


def test_a_pod_has_the_blobs_of_its_shards(settings: PodSettings, remote: str, tmp_path: Path) -> None:
    snapshot = text_snapshot(tmp_path / "texts")
    open_artifacts(remote, snapshot.folder.parent).push(snapshot.folder.name, last=MANIFEST)
    push_job(settings, tmp_path, small_job(snapshot, "token_pairs", "next_token").to_json())
    job = staged(dataclasses.replace(settings, snapshot=f"{remote}/{snapshot.folder.name}"))
    here = {path.name for path in Path(job.snapshot).rglob("*.tar")}
    assert here == {s.blobs.path for s in snapshot.shards if s.blobs and s.split != "holdout"}


def test_a_pod_whose_shards_come_later_has_what_validates(settings: PodSettings, snapshot: Snapshot) -> None:
    job = staged(dataclasses.replace(settings, shard_cache=10**6))
    here = {path.name for path in Path(job.snapshot).rglob("*.arrow")}
    assert here == {shard.path for shard in snapshot.shards_of("validation")}


def test_without_its_settings_a_pod_says_which_one_is_missing() -> None:
    with pytest.raises(BadConfiguration, match="JOB_COMPLETION_INDEX is not set"):
        PodSettings.read({})
    with pytest.raises(BadConfiguration, match=r"TRAINING_NODES .*number, not 'two'"):
        PodSettings.read({"JOB_COMPLETION_INDEX": "0", "TRAINING_NODES": "two"})


def test_without_a_job_a_pod_says_where_it_looked(settings: PodSettings) -> None:
    with pytest.raises(BadConfiguration, match=r"no job\.json in.*/nothing: launch"):
        staged(dataclasses.replace(settings, folder=f"{settings.folder}/nothing"))


def test_a_job_that_cannot_be_read_is_refused(settings: PodSettings, tmp_path: Path) -> None:
    push_job(settings, tmp_path, "{")
    with pytest.raises(BadConfiguration, match=r"job\.json is not .*valid"):
        staged(settings)


def test_a_missing_snapshot_is_named(settings: PodSettings) -> None:
    with pytest.raises(InputChanged, match="/nowhere"):
        staged(dataclasses.replace(settings, snapshot=f"{settings.snapshot}/nowhere"))


def test_a_missing_shard_is_named(
    settings: PodSettings, snapshot: Snapshot, remote: str, tmp_path: Path
) -> None:
    shard = snapshot.shards[0].path
    open_artifacts(remote, tmp_path / "elsewhere").remove(snapshot.folder.name, [shard])
    with pytest.raises(InputChanged, match=shard):
        staged(settings)


def test_another_snapshot_than_the_job_names_is_refused(
    settings: PodSettings, snapshot: Snapshot, tmp_path: Path
) -> None:
    push_job(settings, tmp_path, dataclasses.replace(small_job(snapshot), snapshot_digest="0" * 64).to_json())
    with pytest.raises(InputChanged, match="the job names 000000000000"):
        staged(settings)


def test_wrong_credentials_are_a_bad_configuration_that_tells_no_secret(
    settings: PodSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    with pytest.raises(BadConfiguration, match="AWS_SECRET_ACCESS_KEY") as raised:
        staged(settings)
    assert "not-the-secret" not in str(raised.value)
    assert os.environ["AWS_ACCESS_KEY_ID"] not in str(raised.value)


def test_an_absent_bucket_is_a_bad_configuration(settings: PodSettings) -> None:
    with pytest.raises(BadConfiguration, match=r"s3://no-such-bucket does not exist"):
        staged(dataclasses.replace(settings, folder="s3://no-such-bucket/job"))
