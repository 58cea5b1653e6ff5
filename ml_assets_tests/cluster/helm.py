"""The chart installed by Helm on the cluster, as the page `docs/how-to/kubernetes.md` does it."""

from deployment.render import CHART
from deployment.testbed.build import build
from deployment.testbed.cluster.commands import run
from ml_assets_tests.cluster.cluster_environment import REPOSITORY, ClusterEnvironment

RELEASE = "ml-assets"
STANDARD = "pod-security.kubernetes.io/enforce=restricted"


def make_namespace(team: ClusterEnvironment) -> None:
    """Make the team's namespace, in which no pod may be root. Helm makes it without this label."""
    team.cluster.kubectl("create", "namespace", team.namespace)
    team.cluster.kubectl("label", "namespace", team.namespace, STANDARD)


def install(team: ClusterEnvironment, *options: str) -> None:
    """Install the chart in the team's namespace, or change it. Raise `CommandFailed`."""
    helm(team, "upgrade", "--install", RELEASE, str(REPOSITORY / CHART), "--timeout=15m", *options)


def helm(team: ClusterEnvironment, *words: str) -> str:
    """Return the output of Helm in the team's namespace. Raise `CommandFailed`."""
    place = [
        f"--kubeconfig={team.kubeconfig}",
        f"--kube-context={team.context}",
        f"--namespace={team.namespace}",
    ]
    return run([build("helm") / "helm", *words, *place], seconds=920)
