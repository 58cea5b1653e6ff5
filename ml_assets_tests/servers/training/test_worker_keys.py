"""Keys of the workers of a training, by the policy of the launcher, at a real token service: they suffice for the whole
training, and reach nothing else.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.exceptions
import botocore.session
import pytest

from ml_assets_tests.resources.launcher.api_server import NAMESPACE, serving
from ml_assets_tests.servers.token_store import BUCKET, ROLE, TokenStore, running_token_store
from ml_assets_tests.servers.training.pod_processes import PodProcesses
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from resources.addresses import Address
from resources.artifacts import ArtifactMissing, ArtifactsUnavailable
from resources.artifacts.s3 import RemoteArtifacts
from resources.job.errors import BadConfiguration
from resources.job.job import ExitCode
from resources.launcher.kubernetes.attempt_objects import CONFIG, KEYS_FOLDER
from resources.launcher.kubernetes.cluster import Cluster
from resources.launcher.kubernetes.worker_keys import KEYS, WorkerKeys, WorkersRole, secret_manifest

pytestmark = pytest.mark.timeout(400)

OWN, OTHER = "team/train/own", "team/train/other"
SNAPSHOT = "team/snapshots/mine"
OWNER: dict[str, Any] = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job", "uid": "1"}}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenStore]:
    with running_token_store(tmp_path_factory.mktemp("store")) as store:
        platform = store.client()
        for key in (
            f"{OWN}/checkpoints/step-1/rank-0", f"{OTHER}/checkpoints/step-1/rank-0", f"{SNAPSHOT}/snapshot.json",
            f"{OWN}-2/job.json", "team/bundles/secret", "lake/block", "ledger/dump",
        ):  # fmt: skip
            platform.put_object(Bucket=BUCKET, Key=key, Body=b"content")
        yield store


@pytest.fixture
def as_platform(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients of this process work as the platform does."""
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)


def role_of(store: TokenStore, **changes: Any) -> WorkersRole:
    own = {"written": [f"s3://{BUCKET}/{OWN}"], "read": [f"s3://{BUCKET}/{SNAPSHOT}"]}
    return store.workers_role(**own | changes)


@pytest.fixture
def worker(store: TokenStore, as_platform: None) -> Any:
    """S3 client with the keys of a worker."""
    return store.client_with(role_of(store).keys("test"))


def refused(call: Callable[[], Any]) -> None:
    """Assert that the store denies a request."""
    with pytest.raises(botocore.exceptions.ClientError) as caught:
        call()
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403, caught.value


ELSEWHERE = (
    f"{OTHER}/checkpoints/step-1/rank-0", f"{OWN}-2/job.json", "team/bundles/secret", "lake/block", "ledger/dump",
)  # fmt: skip


def test_a_worker_reads_and_writes_its_own_folder(worker: Any) -> None:
    key = f"{OWN}/checkpoints/step-2/rank-0"
    worker.put_object(Bucket=BUCKET, Key=key, Body=b"mine")
    assert worker.get_object(Bucket=BUCKET, Key=key)["Body"].read() == b"mine"
    listed = worker.list_objects_v2(Bucket=BUCKET, Prefix=f"{OWN}/")["Contents"]
    assert key in [one["Key"] for one in listed]
    worker.delete_object(Bucket=BUCKET, Key=key)
    assert worker.get_object(Bucket=BUCKET, Key=f"{SNAPSHOT}/snapshot.json")["Body"].read() == b"content"


@pytest.mark.parametrize("key", ELSEWHERE)
def test_a_worker_cannot_read_write_or_delete_elsewhere(worker: Any, store: TokenStore, key: str) -> None:
    """Also not in a folder whose name begins with that of its own."""
    refused(lambda: worker.get_object(Bucket=BUCKET, Key=key))
    refused(lambda: worker.put_object(Bucket=BUCKET, Key=key, Body=b"stolen"))
    refused(lambda: worker.delete_object(Bucket=BUCKET, Key=key))
    refused(lambda: worker.copy_object(Bucket=BUCKET, Key=f"{OWN}/copy", CopySource=f"{BUCKET}/{key}"))
    refused(lambda: worker.create_multipart_upload(Bucket=BUCKET, Key=key))
    assert store.client().get_object(Bucket=BUCKET, Key=key)["Body"].read() == b"content"


def test_a_worker_cannot_change_its_snapshot(worker: Any) -> None:
    refused(lambda: worker.put_object(Bucket=BUCKET, Key=f"{SNAPSHOT}/snapshot.json", Body=b"other"))
    refused(lambda: worker.delete_object(Bucket=BUCKET, Key=f"{SNAPSHOT}/snapshot.json"))


@pytest.mark.parametrize("prefix", ["", "team/", f"{OTHER}/", "ledger/", OWN[:-1]])
def test_a_worker_lists_no_other_folder(worker: Any, prefix: str) -> None:
    refused(lambda: worker.list_objects_v2(Bucket=BUCKET, Prefix=prefix))


def test_a_worker_cannot_widen_its_keys(store: TokenStore, as_platform: None) -> None:
    told = json.loads(role_of(store).keys("test"))
    session: Any = botocore.session.get_session()
    sts = session.create_client(
        "sts",
        endpoint_url=store.address,
        aws_access_key_id=told["AccessKeyId"],
        aws_secret_access_key=told["SecretAccessKey"],
        aws_session_token=told["SessionToken"],
    )
    refused(lambda: sts.assume_role(RoleArn=ROLE, RoleSessionName="wider"))
    forged = {**told, "SessionToken": told["SessionToken"][:-8] + "AAAAAAAA"}
    refused(lambda: store.client_with(json.dumps(forged)).get_object(Bucket=BUCKET, Key=f"{OWN}/x"))


def keys_in(folder: Path, keys: str) -> dict[str, str]:
    """Write the files of the workers' Secret; return the variables of a worker."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in secret_manifest(OWNER, {}, keys)["stringData"].items():
        (folder / name).write_text(text.replace(KEYS_FOLDER, str(folder)))
    return {"AWS_CONFIG_FILE": str(folder / CONFIG)}


def test_a_missing_file_is_missing_for_a_worker(
    store: TokenStore, as_platform: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = keys_in(tmp_path / "keys", role_of(store).keys("test"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", files["AWS_CONFIG_FILE"])
    above, _, name = OWN.rpartition("/")
    own = RemoteArtifacts(f"s3://{BUCKET}/{above}", tmp_path / "own", store.address)
    assert own.exists(name)
    assert not own.exists(name, "result.json")
    with pytest.raises(ArtifactMissing):
        own.pull(name, ["result.json"])


def test_a_whole_training_needs_no_other_keys(
    store: TokenStore, as_platform: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes train with keys alone of a file, lose a node, and resume from the checkpoints that they stored."""
    job = small_job(small_snapshot(tmp_path / "snapshots"), pace=0.02)
    url = f"s3://{BUCKET}/{tmp_path.name}"
    snapshot = f"{url}/{Path(job.snapshot).name}"
    limited = role_of(store, written=[f"{url}/job"], read=[snapshot])
    pods = PodProcesses(job, store, url, tmp_path)
    pods.variables = keys_in(tmp_path / "keys", limited.keys("test"))
    try:
        pods.start()
        pods.wait_for("checkpoint", step=20)
        pods.kill_node(1)
        pods.wait()
        pods.start()
        pods.wait_for("resumed")
        assert pods.wait(180) == [ExitCode.DONE] * 2, pods.said()
        assert pods.result().attempts == 2
    finally:
        pods.end()


def test_a_launcher_renews_the_secret_and_gives_it_to_the_next_owner(
    store: TokenStore, as_platform: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path)))
        keys = WorkerKeys(Cluster(NAMESPACE), role_of(store), "test", {}, renew_seconds=0.5)
        keys.give(OWNER)
        try:
            written = api.objects["secrets", "job-s3"]["stringData"]
            deadline = time.monotonic() + 30
            while api.objects["secrets", "job-s3"]["stringData"] == written:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            later = {**OWNER, "metadata": {"name": "job", "uid": "2"}}
            keys.give(later)
            [reference] = api.objects["secrets", "job-s3"]["metadata"]["ownerReferences"]
            assert reference == {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "2"}
        finally:
            keys.stop()
    assert store.client_with(written[KEYS]).list_objects_v2(Bucket=BUCKET, Prefix=f"{OWN}/")["KeyCount"] > 0


def test_a_role_that_refuses_and_a_service_that_is_away_are_named(
    store: TokenStore, as_platform: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        BadConfiguration, match=r"role/nobody cannot be assumed at .*ML_ASSETS_KUBERNETES_S3_ROLE"
    ):
        role_of(store, arn="arn:aws:iam::000000000000:role/nobody").keys("test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(BadConfiguration, match="role/workers cannot be assumed"):
        role_of(store).keys("test")
    with pytest.raises(ArtifactsUnavailable, match="gave no keys"):
        role_of(store, endpoint_url=Address("http://127.0.0.1:9")).keys("test")


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_training_outlives_its_first_keys(store: TokenStore, as_platform: None, tmp_path: Path) -> None:
    """It reads renewed keys from the same file. 900 s are the shortest life that stores give."""
    job = small_job(small_snapshot(tmp_path / "snapshots"), pace=4.3)
    url = f"s3://{BUCKET}/{tmp_path.name}"
    limited = role_of(store, written=[f"{url}/job"], read=[f"{url}/{Path(job.snapshot).name}"])
    first, began = limited.keys("test"), time.monotonic()
    pods = PodProcesses(job, store, url, tmp_path)
    pods.variables = keys_in(tmp_path / "keys", first)
    try:
        pods.start(nodes=1)
        time.sleep(450)
        keys_in(tmp_path / "keys", limited.keys("test"))
        assert pods.wait(1200) == [ExitCode.DONE], pods.said()
        assert time.monotonic() - began > 910
        refused(
            lambda: store.client_with(first).get_object(Bucket=BUCKET, Key=f"{tmp_path.name}/job/job.json")
        )
        assert pods.result().attempts == 1
    finally:
        pods.end()
