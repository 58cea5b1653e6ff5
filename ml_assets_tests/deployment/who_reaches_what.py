"""Table of who reaches what in a team's namespace, from the page on Kubernetes: the chart's policies, and pods of a
real cluster, are compared with it.
"""

from deployment.render import TEAM
from ml_assets.foundation.checkout import ROOT
from resources.job.job import TrainingJob
from resources.launcher.kubernetes.attempt_objects import training_labels

TRAININGS = {
    name: TrainingJob(
        model=name,
        partition="2024-01-01",
        model_function="a.b",
        objective="binary",
        hyperparameters={},
        snapshot="",
        snapshot_digest="",
        code_version="",
        seed=0,
    )
    for name in ("workers", "workers of another training")
}
"""Kind of pod → its training: the launcher makes a policy for each."""
KINDS = {
    "webserver": ({"app": "webserver"}, TEAM),
    "proxy": ({"app": "proxy"}, TEAM),
    "API": ({"app": "api"}, TEAM),
    "serving": ({"app": "serving"}, TEAM),
    "daemon": ({"app": "daemon"}, TEAM),
    "code location": ({"app": "code-location"}, TEAM),
    "a run": ({"dagster/run-id": "1"}, TEAM),
    **{name: (training_labels(job), TEAM) for name, job in TRAININGS.items()},
    "Ray's head": ({"app": "ray-head", "ml-assets/ray": "member"}, TEAM),
    "Ray's workers": ({"app": "ray-worker", "ml-assets/ray": "member"}, TEAM),
    "another pod": ({}, TEAM),
    "`network.ingress`": ({}, "ingress"),
    "`metrics.readers`": ({}, "monitoring"),
    "a pod elsewhere": ({"app": "webserver"}, "other"),
}
"""Kind of pod → labels and namespace."""
OURS = [kind for kind, (_, space) in KINDS.items() if space == TEAM]
MEANT = {
    "all but workers": [kind for kind in OURS if kind not in TRAININGS],
    "workers": [*TRAININGS],
    "Ray": ["Ray's head", "Ray's workers"],
}
TABLE = "| from | to | port |\n|---|---|---|\n"


def told_by_the_page() -> dict[tuple[str, str], str]:
    """Return (kind, kind) → port, `all` for each port, from the rows about pods on the page."""
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.split(TABLE)[1].split("\n\n")[0].splitlines()]
    return {
        (sender, receiver): port
        for senders, to, port in reversed(rows)  # the first row counts
        for sender in MEANT.get(senders) or senders.split(", ")
        for receiver in ([sender] if to == "workers of the same training" else MEANT.get(to, [to]))
        if receiver in KINDS
    }
