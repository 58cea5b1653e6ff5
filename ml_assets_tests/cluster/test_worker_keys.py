"""Workers of a training on the cluster, with keys of their own folders for a short time, in place of the bucket's."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ml_assets_tests.cluster.cluster_environment import PYTHON, waited_for
from ml_assets_tests.cluster.launched_job import (
    LaunchedJob,
    on_token_store,
    rightful_kubeconfig,
    take_right,
)
from ml_assets_tests.servers.token_store import BUCKET, ROLE, TokenStore, running_token_store
from resources.job.errors import BadConfiguration, ClusterRefused
from resources.launcher.kubernetes.attempt_objects import KEYS_FOLDER
from resources.launcher.kubernetes.cluster import Cluster
from resources.launcher.kubernetes.cluster_checks import cluster_checks
from resources.launcher.kubernetes.worker_keys import KEYS, WorkerKeys, WorkersRole
from resources.launcher.resource_profile import ResourceProfile

pytestmark = pytest.mark.timeout(900)

PROFILE = ResourceProfile(nodes=2, cpu="500m", memory="3Gi", spread="required")
STEAL = f"""
import botocore.exceptions, botocore.session, os, sys
client = botocore.session.get_session().create_client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
for call, more in (("get_object", {{}}), ("put_object", {{"Body": b"stolen"}}), ("delete_object", {{}})):
    for key in sys.argv[1:]:
        try:
            getattr(client, call)(Bucket="{BUCKET}", Key=key, **more)
            print(call, key)
        except botocore.exceptions.ClientError as error:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 403, error
"""
"""Program that prints what it may do with these keys of the bucket."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenStore]:
    with running_token_store(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def keyless(
    store: TokenStore, make_trained_job: Callable[..., LaunchedJob], monkeypatch: pytest.MonkeyPatch
) -> LaunchedJob:
    """A job on that store, whose cluster has no Secret with the keys of the bucket."""
    launch = make_trained_job(pace=0.4, epochs=5, patience=5)
    return on_token_store(launch, store, monkeypatch, ML_ASSETS_KUBERNETES_S3_ROLE=ROLE)


@pytest.mark.parametrize(
    ("back_end", "kind"), [("job", "Job"), ("jobset", "JobSet"), ("trainjob", "TrainJob")]
)
def test_workers_hold_keys_of_their_own_folder_alone(
    keyless: LaunchedJob,
    store: TokenStore,
    restarted: Callable[[LaunchedJob, str], LaunchedJob],
    back_end: str,
    kind: str,
) -> None:
    launch = restarted(keyless, back_end)
    stolen = ["other/train/checkpoints/step-1", "team/bundles/model", "ledger/dump"]
    for key in stolen:
        store.client().put_object(Bucket=BUCKET, Key=key, Body=b"content")
    process = launch.start(PROFILE)
    launch.wait_for_events(process, 3)
    [secret] = launch.objects("secrets")
    [owner] = secret["metadata"]["ownerReferences"]
    assert owner["kind"] == kind
    worker = launch.objects("pods")[0]["metadata"]["name"]
    said = launch.cluster.kubectl("exec", worker, "--", PYTHON, "-c", STEAL, *stolen)
    assert said == ""
    environment = launch.cluster.kubectl("exec", worker, "--", "env")
    assert "AWS_ACCESS_KEY_ID" not in environment
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    assert process.wait() == 0, lines[-20:]
    assert lines[-1] == "result 1", lines[-20:]
    waited_for(lambda: launch.objects("secrets") == [], "the Secret to go with its owner", 60)


def test_renewed_keys_reach_the_pods(keyless: LaunchedJob, store: TokenStore) -> None:
    """The launcher writes the Secret again, and the kubelet the file in the running pod."""
    process = keyless.start(ResourceProfile(nodes=2, cpu="500m", memory="3Gi"))
    keyless.wait_for_events(process, 3)
    pod = keyless.objects("pods")[0]["metadata"]["name"]
    [job] = keyless.objects("jobs")
    of = keyless.settings.kubernetes

    def mounted() -> str:
        return keyless.cluster.kubectl("exec", pod, "--", "cat", f"{KEYS_FOLDER}/{KEYS}")

    before = mounted()
    role = WorkersRole(
        arn=ROLE,
        seconds=900,
        endpoint_url=keyless.settings.s3_endpoint_url,
        written=[f"s3://{BUCKET}/a"],
        read=[],
    )
    cluster = Cluster(of.namespace, of.context)
    keys = WorkerKeys(cluster, role, "test", job["metadata"]["labels"], renew_seconds=1.0)
    keys.give(job)
    try:
        written = {secret["data"][KEYS] for secret in keyless.objects("secrets")}
        waited_for(
            lambda: {secret["data"][KEYS] for secret in keyless.objects("secrets")} != written,
            "the Secret to be renewed",
            60,
        )
    finally:
        keys.stop()
    waited_for(lambda: mounted() != before, "the file in the pod to change", 180)
    process.terminate()
    process.wait(60)
    keyless.prune()


def test_the_doctor_tries_the_role_and_names_what_is_missing(
    keyless: LaunchedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(rightful_kubeconfig(keyless.cluster, "run", tmp_path)))
    command = (PYTHON, "-m", "ml_assets_tests.cluster.scripted_pod")
    launch = keyless.with_kubernetes(context="run", command=command)
    checks = dict(cluster_checks(launch.settings))
    assert "gives workers keys of their own folders for 3600 s" in checks["cluster keys"]()
    assert checks["cluster pods"]().endswith("-s3")
    refused = dict(cluster_checks(launch.with_kubernetes(s3_role=f"{ROLE}-not").settings))
    with pytest.raises(BadConfiguration, match="workers-not cannot be assumed"):
        refused["cluster keys"]()
    take_right(launch.cluster, "secrets")
    with pytest.raises(ClusterRefused, match="may not create secrets, update secrets"):
        checks["cluster rights"]()
