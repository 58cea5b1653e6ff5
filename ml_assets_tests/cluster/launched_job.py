"""Launching on the cluster as tests do: a job of their own, a worker that plays its part, what is left after."""

import base64
import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ml_assets_tests.cluster.cluster_environment import PYTHON, REPOSITORY, ClusterEnvironment
from ml_assets_tests.deployment.chart_objects import chart_objects
from ml_assets_tests.servers.token_store import BUCKET, TokenStore
from resources.job.events import TrainingEvent, training_folder_name
from resources.job.job import TrainingJob, TrainingResult
from resources.job.training_settings import TrainingSettings
from resources.launcher.resource_profile import ResourceProfile
from resources.platform import Platform
from resources.settings import Settings

SMALL = {"cpu": "100m", "memory": "256Mi", "scratch": "100Mi", "shared_memory": "16Mi", "grace_seconds": 20}
KINDS = "jobs,pods,services,leases"
KINDS_OF = {
    "job": (),
    "jobset": ("jobsets",),
    "trainjob": ("trainjobs", "trainingruntimes", "jobsets"),
}
"""Kinds of the objects of each back end beside `KINDS`."""


@dataclass
class LaunchedJob:
    """One test's job, and everything its launcher told."""

    cluster: ClusterEnvironment
    settings: Settings
    variables: dict[str, str]
    job: TrainingJob
    events: list[TrainingEvent] = field(default_factory=list[TrainingEvent])
    log: list[str] = field(default_factory=list[str])

    @property
    def folder(self) -> Path:
        return Platform(self.settings).artifacts.folder(training_folder_name(self.job))

    def profile(self, plan: str, steps: int = 0, *, told: bool = False, **changes: Any) -> ResourceProfile:
        """Return the profile of a small pod that does `plan` (scripted_pod), and reports how many steps that are."""
        env = {"PLAN": plan, "STEPS": str(steps), **({"TOLD": "yes"} if told else {})}
        return ResourceProfile.model_validate({**SMALL, "env": env, **changes})

    def with_kubernetes(self, **changes: Any) -> "LaunchedJob":
        """The same with other settings of the cluster."""
        kubernetes = self.settings.kubernetes.model_copy(update=changes)
        return dataclasses.replace(
            self, settings=self.settings.model_copy(update={"kubernetes": kubernetes}), events=[], log=[]
        )

    def run(self, profile: ResourceProfile) -> TrainingResult:
        """Launch here and wait."""
        launcher = Platform(self.settings).launcher
        return launcher.run(self.job, self.folder, self.events.append, self.log.append, profile)

    def start(self, profile: ResourceProfile) -> "subprocess.Popen[str]":
        """Launch in a process of its own, which says each event and log line on stdout."""
        return subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, self.job.to_json(), profile.model_dump_json()],
            cwd=REPOSITORY,
            env={**os.environ, **self.variables},
            stdout=subprocess.PIPE,
            text=True,
        )

    def prune(self) -> str:
        """`ml-assets trainings prune` in a process of its own, as a daemon elsewhere would."""
        done = subprocess.run(
            [Path(sys.executable).with_name("ml-assets"), "trainings", "prune"],
            cwd=REPOSITORY,
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def starts(self) -> int:
        """Attempts that were started."""
        return sum(line.startswith("started train-") for line in self.log)

    def sizes(self) -> list[int]:
        """Pods of each attempt that was started."""
        found = (re.match(r"started train-\S+: (\d+) pods", line) for line in self.log)
        return [int(match[1]) for match in found if match]

    def objects(self, kinds: str) -> list[dict[str, Any]]:
        """Return the objects of this training in the cluster."""
        selector = f"--selector=ml-assets/training={self.job.fingerprint[:12]}"
        return self.cluster.objects(kinds, selector)

    def left(self) -> list[str]:
        """Everything the cluster still holds of this training, by kind and name."""
        return [f"{one['kind']} {one['metadata']['name']}" for one in self.objects(KINDS)]

    def uids(self, kinds: str) -> set[str]:
        return {str(one["metadata"]["uid"]) for one in self.objects(kinds)}

    def wait_for_events(self, process: "subprocess.Popen[str]", number: int) -> list[str]:
        """Lines of a started launcher, up to its `number`-th event."""
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line.rstrip())
            number -= line.startswith("event ")
            if not number:
                return lines
        raise AssertionError(f"the launcher ended: {lines}")


def on_token_store(
    launch: LaunchedJob, store: TokenStore, monkeypatch: pytest.MonkeyPatch, **more: str
) -> LaunchedJob:
    """Return the job on that store, with `more` variables. The cluster has no Secret with keys of it."""
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    variables = {key: value for key, value in launch.variables.items() if key != "AWS_ENDPOINT_URL_S3"}
    variables |= store.environment | {
        "ML_ASSETS_S3_ENDPOINT_URL": store.address,
        "ML_ASSETS_KUBERNETES_S3_ENDPOINT_URL": f"http://{launch.cluster.cluster.address_for_pods(store.port)}",
        "ML_ASSETS_KUBERNETES_S3_SECRET": "none",
        "ML_ASSETS_ARTIFACTS_URL": f"s3://{BUCKET}/{launch.cluster.namespace}-{time.time_ns()}",
        **more,
    }
    pods = json.loads(variables["ML_ASSETS_KUBERNETES_ENV"]) | {"AWS_DEFAULT_REGION": "us-east-1"}
    variables["ML_ASSETS_KUBERNETES_ENV"] = json.dumps(pods)
    return dataclasses.replace(launch, variables=variables, settings=settings_of(variables))


def logged_steps(events: list[TrainingEvent]) -> list[int]:
    """Return the step of each reported metric, in order."""
    return [event.step for event in events if event.kind == "metrics"]


def settings_of(variables: dict[str, str]) -> Settings:
    """Return the settings that a process with these variables reads."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        return Settings()
    finally:
        os.environ.clear()
        os.environ.update(before)


def job_of(
    name: str, *, workers: int = 2, max_attempts: int = 3, snapshot: Path, **settings: Any
) -> TrainingJob:
    """Return a job that no other test has."""
    return TrainingJob(
        model="small",
        partition="2024-01-01",
        model_function="a.b",
        objective="binary",
        hyperparameters={"test": name, "at": time.time_ns()},
        snapshot=str(snapshot),
        snapshot_digest="0" * 64,
        code_version="",
        seed=0,
        settings=TrainingSettings(workers=workers, max_attempts=max_attempts, **settings),
    )


def worker_variables(cluster: ClusterEnvironment) -> dict[str, str]:
    """Return the variables with which pods run the tests' worker."""
    command = json.dumps([PYTHON, "-m", "ml_assets_tests.cluster.scripted_pod"])
    return {**cluster.settings(), "ML_ASSETS_KUBERNETES_COMMAND": command}


def rightful_kubeconfig(cluster: ClusterEnvironment, account: str, folder: Path, without: str = "") -> Path:
    """Return a kubeconfig for a new service account with the rights of the account of that name in the chart.

    `without`: a verb that its roles lack, as those of an older chart do.
    """
    bindings = [
        one
        for one in chart_objects("RoleBinding", namespace=cluster.namespace)
        if account in [subject["name"] for subject in one["subjects"]]
    ]
    named = {one["roleRef"]["name"] for one in bindings}
    roles = [one for one in chart_objects("Role") if one["metadata"]["name"] in named]
    for rule in (rule for role in roles for rule in role["rules"]):
        rule["verbs"] = [verb for verb in rule["verbs"] if verb != without]
    cluster.apply(*roles, *bindings)
    return kubeconfig_of(cluster, account, folder)


def take_right(cluster: ClusterEnvironment, resource: str) -> None:
    """Take from the launcher's role the rule about this resource."""
    rules = json.loads(cluster.kubectl("get", "role", "launcher", "--output=json"))["rules"]
    place = next(number for number, rule in enumerate(rules) if resource in rule["resources"])
    patch = json.dumps([{"op": "remove", "path": f"/rules/{place}"}])
    cluster.kubectl("patch", "role", "launcher", "--type=json", "--patch", patch)


def kubeconfig_of(cluster: ClusterEnvironment, account: str, folder: Path) -> Path:
    """Return a kubeconfig for a new service account, which has no rights yet."""
    cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}})
    token = cluster.kubectl("create", "token", account).strip()
    config = json.loads(cluster.kubectl("config", "view", "--raw", "--output=json"))
    server = config["clusters"][0]["cluster"]
    authority = (
        server.get("certificate-authority-data")
        or base64.b64encode(Path(server["certificate-authority"]).read_bytes()).decode()
    )
    facts = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "c", "cluster": {"server": server["server"], "certificate-authority-data": authority}}
        ],
        "users": [{"name": account, "user": {"token": token}}],
        "contexts": [{"name": account, "context": {"cluster": "c", "user": account}}],
        "current-context": account,
    }
    path = folder / account
    path.write_text(json.dumps(facts))
    return path


_LAUNCH = """
import signal
import sys
from resources.job.job import TrainingJob
from resources.launcher.resource_profile import ResourceProfile
from resources.job.events import training_folder_name
from resources.platform import Platform
from resources.settings import Settings
def say(*words):
    print(*words, flush=True)
signal.signal(signal.SIGINT, signal.default_int_handler)
job = TrainingJob.from_json(sys.argv[1])
platform = Platform(Settings())
result = platform.launcher.run(
    job,
    platform.artifacts.folder(training_folder_name(job)),
    lambda event: say("event", event.kind, event.step),
    lambda line: say("log", line),
    ResourceProfile.model_validate_json(sys.argv[2]),
)
say("result", result.attempts)
"""
