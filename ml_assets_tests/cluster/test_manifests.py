"""A team's namespace from the Helm chart: accepted as it is, with the rights needed and no others."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from deployment.render import EXAMPLE
from ml_assets_tests.cluster.cluster_environment import REPOSITORY, ClusterEnvironment, pod
from ml_assets_tests.cluster.helm import install, make_namespace
from ml_assets_tests.deployment.chart_objects import settings_of_dagster
from resources.launcher.kubernetes.cluster_checks import NEEDED, NEEDED_FOR_POLICIES

FOREIGN = (
    ("", "secrets", "", "get"),
    ("", "pods", "exec", "create"),
    ("", "nodes", "", "list"),
    ("rbac.authorization.k8s.io", "rolebindings", "", "create"),
)


@pytest.fixture(scope="module")
def team(cluster: ClusterEnvironment) -> Iterator[ClusterEnvironment]:
    """The example team, installed; its images are nowhere, so nothing of it starts."""
    team = ClusterEnvironment(cluster.cluster, f"team-{cluster.namespace}", cluster.s3_endpoint_url)
    make_namespace(team)
    install(team, f"--values={REPOSITORY / EXAMPLE}", "--set=prepare=false")
    yield team
    cluster.cluster.kubectl("delete", "namespace", team.namespace, "--wait=false")


def may(cluster: ClusterEnvironment, account: str, asked: tuple[str, str, str, str], namespace: str) -> bool:
    """Return whether the API server lets an account do this."""
    group, resource, subresource, verb = asked
    attributes = {"group": group, "resource": resource, "subresource": subresource, "verb": verb}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{cluster.namespace}:{account}",
            "resourceAttributes": {**attributes, "namespace": namespace},
        },
    }
    answer = cluster.cluster.kubectl("create", "--filename=-", "--output=json", stdin=json.dumps(review))
    return json.loads(answer)["status"]["allowed"]


def test_a_runs_account_may_exactly_what_a_launcher_needs(team: ClusterEnvironment) -> None:
    [role] = [item for item in team.objects("roles") if item["metadata"]["name"] == "launcher"]
    granted = {
        (group, resource.partition("/")[0], resource.partition("/")[2], verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {*NEEDED, *NEEDED_FOR_POLICIES}
    assert all(may(team, "run", asked, team.namespace) for asked in granted)
    assert not any(may(team, "run", asked, team.namespace) for asked in FOREIGN)


def test_no_account_reaches_into_another_namespace(team: ClusterEnvironment) -> None:
    for account in ("run", "dagster", "default"):
        assert not may(team, account, ("batch", "jobs", "", "create"), "default")
        assert not may(team, account, ("", "pods", "", "list"), "default")


def test_everything_of_the_team_keeps_the_strictest_pod_standard(team: ClusterEnvironment) -> None:
    deployments = team.objects("deployments")
    assert {item["metadata"]["name"] for item in deployments} == {"webserver", "daemon", "code-location"}
    for item in deployments:
        # The API server itself checks pods against the namespace's standard; it refuses the whole pod.
        spec = item["spec"]["template"]["spec"]
        trial: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "trial"},
            "spec": spec,
        }
        team.kubectl("create", "--dry-run=server", "--filename=-", stdin=json.dumps(trial))
        [container] = spec["containers"]
        assert "@sha256:" in container["image"]
        assert not any("valueFrom" not in one and "SECRET" in one["name"] for one in container["env"])


def test_a_pod_that_mounts_the_node_is_refused(team: ClusterEnvironment) -> None:
    with pytest.raises(Exception, match=r"violates PodSecurity.*hostPath"):
        team.apply(pod("mounting", team.image, "pass"))


def test_dagster_takes_the_instance_settings() -> None:
    from dagster._config import process_config
    from dagster_aws.s3.compute_log_manager import S3ComputeLogManager
    from dagster_k8s import K8sRunLauncher

    settings = settings_of_dagster()
    for part, kind in (("run_launcher", K8sRunLauncher), ("compute_logs", S3ComputeLogManager)):
        variables = {"env": "HOME"}
        config = {
            name: variables if isinstance(value, dict) and "env" in value else value
            for name, value in settings[part]["config"].items()
        }
        checked = process_config(kind.config_type(), config)
        assert checked.success, checked.errors
