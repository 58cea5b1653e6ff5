"""Workers and launchers without keys: the cluster's own tokens, at a token service that trusts the cluster's issuer.

A policy changes the pods of the account `trainer` as the webhook of EKS does: it mounts a token and sets two variables.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ml_assets_tests.cluster.cluster_environment import PYTHON, ClusterEnvironment, waited_for
from ml_assets_tests.cluster.launched_job import LaunchedJob, on_token_store, settings_of
from ml_assets_tests.servers.token_store import (
    POD_ROLE,
    ROLE,
    TokenStore,
    TrustedIssuer,
    running_token_store,
)
from resources.launcher.resource_profile import ResourceProfile

pytestmark = pytest.mark.timeout(900)

AUDIENCE = "sts.amazonaws.com"
KEYS_SECONDS = 5
"""Life of the keys of pods: each training here outlives its first."""
POLICY = yaml.safe_load(Path(__file__).with_name("web_identity_policy.yaml").read_text())
PROFILE = ResourceProfile(nodes=2, cpu="500m", memory="3Gi")


@pytest.fixture(scope="module")
def store(cluster: ClusterEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenStore]:
    """A store that trusts two accounts of the cluster, and reads the cluster's public keys from its API server."""
    layout = cluster.cluster.layout
    trusted = TrustedIssuer(
        address="https://kubernetes.default.svc",
        keys=f"{layout.api}/openid/v1/jwks",
        audience=AUDIENCE,
        subjects=tuple(f"system:serviceaccount:{cluster.namespace}:{name}" for name in ("trainer", "run")),
        ca=layout.pki / "ca.crt",
        life=f"{KEYS_SECONDS}s",
    )
    public_keys = ("clusterrolebinding", f"issuer-{cluster.namespace}")
    cluster.kubectl(
        "create", *public_keys, "--clusterrole=system:service-account-issuer-discovery",
        "--group=system:unauthenticated",
    )  # fmt: skip
    for name in ("trainer", "run"):
        cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    try:
        with running_token_store(tmp_path_factory.mktemp("store"), trusted) as store:
            yield store
    finally:
        cluster.kubectl("delete", *public_keys)


@pytest.fixture
def keyless(
    store: TokenStore, make_trained_job: Callable[..., LaunchedJob], monkeypatch: pytest.MonkeyPatch
) -> LaunchedJob:
    """A job on that store. The cluster has no Secret with keys of it."""
    launch = make_trained_job(pace=0.4, epochs=5, patience=5)
    return on_token_store(launch, store, monkeypatch)


@pytest.fixture
def mounted_tokens(cluster: ClusterEnvironment) -> Iterator[None]:
    """Let the cluster mount a token into each pod of this namespace's `trainer`."""
    policy, binding = (_named(one, cluster.namespace) for one in POLICY["items"])
    variables = {
        "AWS_ROLE_ARN": POD_ROLE,
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/secrets/token-of-s3/token",
    }
    assert all(text in json.dumps(policy) for text in (*variables, *variables.values()))
    cluster.apply(policy, binding)
    trial: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "trial"},
        "spec": {
            "serviceAccountName": "trainer",
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": cluster.image}],
        },
    }

    def is_in_force() -> bool:
        made = cluster.kubectl(
            "create", "--dry-run=server", "--output=json", "--filename=-", stdin=json.dumps(trial)
        )
        return "AWS_ROLE_ARN" in made

    waited_for(is_in_force, "the policy to change pods", 60)
    yield
    cluster.cluster.kubectl(
        "delete", "mutatingadmissionpolicy,mutatingadmissionpolicybinding", policy["metadata"]["name"]
    )


def _named(one: dict[str, Any], namespace: str) -> dict[str, Any]:
    text = json.dumps(one).replace("team-a", namespace)
    return json.loads(text)


def keys_in_pod(launch: LaunchedJob) -> str:
    """Return the names of variables with keys in a pod of the training."""
    pod = launch.objects("pods")[0]["metadata"]["name"]
    said = launch.cluster.kubectl("exec", pod, "--", "env")
    names = [line.partition("=")[0] for line in said.splitlines()]
    return " ".join(one for one in names if one.startswith("AWS_") and ("KEY" in one or "SESSION" in one))


def train(launch: LaunchedJob) -> None:
    """Train; assert that no pod has a key in its environment."""
    process = launch.start(PROFILE)
    launch.wait_for_events(process, 3)
    assert keys_in_pod(launch) == ""
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    assert process.wait() == 0, lines[-20:]
    assert lines[-1] == "result 1", lines[-20:]


@pytest.mark.usefixtures("mounted_tokens")
def test_workers_train_with_the_token_of_their_account(keyless: LaunchedJob) -> None:
    """Two pods read the snapshot and write checkpoints. Their keys end several times meanwhile."""
    variables = keyless.variables | {"ML_ASSETS_KUBERNETES_SERVICE_ACCOUNT": "trainer"}
    train(dataclasses.replace(keyless, variables=variables, settings=settings_of(variables)))


def test_a_launcher_with_a_token_gives_workers_their_keys(keyless: LaunchedJob, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(keyless.cluster.kubectl("create", "token", "run", f"--audience={AUDIENCE}").strip())
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    variables = {key: value for key, value in keyless.variables.items() if key not in keys} | {
        "AWS_ROLE_ARN": POD_ROLE,
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
        "AWS_ENDPOINT_URL_STS": keyless.variables["ML_ASSETS_S3_ENDPOINT_URL"],
        "ML_ASSETS_KUBERNETES_S3_ROLE": ROLE,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in keys:
            patch.delenv(name)
        train(dataclasses.replace(keyless, variables=variables, settings=settings_of(variables)))


def test_pods_of_other_accounts_get_no_token(mounted_tokens: None, cluster: ClusterEnvironment) -> None:
    trial = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "other"},
        "spec": {"containers": [{"name": "main", "image": cluster.image, "command": [PYTHON]}]},
    }
    made = cluster.kubectl(
        "create", "--dry-run=server", "--output=json", "--filename=-", stdin=json.dumps(trial)
    )
    assert "AWS_ROLE_ARN" not in made
