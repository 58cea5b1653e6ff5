"""Launchers that follow a JobSet, made by them or of a TrainJob: they come and go; the training is the cluster's."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from ml_assets_tests.resources.launcher import pod_documents
from ml_assets_tests.resources.launcher.api_server import ApiServer
from ml_assets_tests.resources.launcher.launched_here import LaunchedHere, now, with_pod
from resources.artifacts import ArtifactsUnavailable
from resources.job.errors import (
    AttemptsExhausted,
    ClusterRefused,
    Diverged,
    JobSetsMissing,
    PodNotStarted,
    TrainJobsMissing,
)
from resources.job.training_settings import TrainingSettings
from resources.launcher.resource_profile import NodeRange, ResourceProfile

Document = dict[str, Any]
Play = Callable[[ApiServer, Document], None]
DONE, DIVERGED = pod_documents.ended(0, 0), pod_documents.ended(0, 65, message="the loss was nan at step 7")
RUNNING = pod_documents.pod(0, state={"running": {"startedAt": pod_documents.CREATED}})


@pytest.fixture(params=["jobset", "trainjob"])
def back_end(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def launch(launch: LaunchedHere, back_end: str) -> LaunchedHere:
    """The launcher, with this back end."""
    launch.settings = launch.settings.model_copy(update={"backend": back_end, "unschedulable_seconds": 2.0})
    return launch


def with_workers(pod: Document, condition: str | None = None, **status: Any) -> Play:
    """Controllers that give each JobSet its Job with this pod and condition, and this status, at once. Each TrainJob
    gets its JobSet before.
    """

    def play(api: ApiServer, made: Document) -> None:
        if made["kind"] == "TrainJob":
            made = jobset_of(api, made)
        if made["kind"] != "JobSet":
            return
        (replicated,) = made["spec"]["replicatedJobs"]
        meta = made["metadata"]
        owner = {"kind": "JobSet", "name": meta["name"], "uid": meta["uid"]}
        named = {
            **replicated["template"]["metadata"],
            "name": f"{meta['name']}-workers-0",
            "ownerReferences": [owner],
        }
        job = api.put("jobs", {"kind": "Job", "metadata": named, "spec": replicated["template"]["spec"]})
        labels = replicated["template"]["spec"]["template"]["metadata"]["labels"]
        with_pod(pod, condition)(
            api, {**job, "metadata": {**job["metadata"], "labels": {**named["labels"], **labels}}}
        )
        api.put("jobs", {**api.objects["jobs", named["name"]], "metadata": job["metadata"]})
        api.put("jobsets", {**made, "status": status})

    return play


def jobset_of(api: ApiServer, made: Document) -> Document:
    """Return the JobSet that Trainer makes of a TrainJob."""
    meta, template = (
        made["metadata"],
        api.objects["trainingruntimes", made["spec"]["runtimeRef"]["name"]]["spec"],
    )
    owner = {"kind": "TrainJob", "name": meta["name"], "uid": meta["uid"]}
    named = {**template["template"]["metadata"], "name": meta["name"], "ownerReferences": [owner]}
    return api.put("jobsets", {"kind": "JobSet", "metadata": named, "spec": template["template"]["spec"]})


def complete_job(api: ApiServer, name: str) -> None:
    """Give a Job the status of one whose pods are done."""
    done = {"conditions": [{"type": "Complete", "status": "True"}], "startTime": now()}
    api.put("jobs", {**api.objects["jobs", name], "status": done})


def finishing(launch: LaunchedHere) -> Play:
    """Controllers whose pods are done at once."""

    def play(api: ApiServer, made: Document) -> None:
        with_workers(DONE, "Complete")(api, made)
        launch.finish()

    return play


def leave_running(launch: LaunchedHere) -> None:
    """Run a launcher until its pods run, and let it go."""

    def lose_storage(line: str) -> None:
        if "pods run on" in line:
            raise ArtifactsUnavailable("S3 did not answer")

    with pytest.raises(ArtifactsUnavailable):
        launch.run(lose_storage)


def test_a_training_makes_one_jobset_and_leaves_nothing(
    api: ApiServer, launch: LaunchedHere, back_end: str
) -> None:
    api.on_job = finishing(launch)
    assert launch.run().best_step == 1
    made = [one for one in api.requests if one.startswith("POST") and "POST trainingruntimes " not in one]
    assert made == [f"POST {back_end}s {launch.name}"]
    assert list(api.objects) == []


def test_a_final_exit_code_is_its_error_and_removes_the_jobset(api: ApiServer, launch: LaunchedHere) -> None:
    api.on_job = with_workers(DIVERGED, "Failed", terminalState="Failed")
    with pytest.raises(Diverged, match="nan at step 7"):
        launch.run()
    assert list(api.objects) == []


def test_a_jobset_without_restarts_left_quotes_the_last_attempt(api: ApiServer, launch: LaunchedHere) -> None:
    failed = {"type": "Failed", "status": "True", "reason": "ReachedMaxRestarts", "message": "…"}
    api.on_job = with_workers(
        pod_documents.ended(0, 3),
        "Failed",
        restartsCountTowardsMax=2,
        restarts=2,
        terminalState="Failed",
        conditions=[failed],
    )
    with pytest.raises(
        AttemptsExhausted, match=r"3 attempts failed, .*pod 0 on node1 ended with exit code 3"
    ):
        launch.run()
    assert list(api.objects) == []


def test_a_launcher_that_goes_leaves_the_jobset_and_the_next_attaches(
    api: ApiServer, launch: LaunchedHere, back_end: str
) -> None:
    api.on_job = with_workers(RUNNING)

    leave_running(launch)
    before = api.objects[f"{back_end}s", launch.name]["metadata"]
    assert before["annotations"]["ml-assets/run"] == "the-run"

    def complete(line: str) -> None:
        if line.startswith("attached to "):
            launch.finish()
            complete_job(api, f"{launch.name}-workers-0")
            claims.append(api.objects[f"{back_end}s", launch.name]["metadata"])

    claims: list[Document] = []
    api.on_done = lambda request: (
        claims.append(api.objects[f"{back_end}s", launch.name]["metadata"])
        if (request.startswith(f"PUT {back_end}s"))
        else None
    )
    assert launch.run(complete, run_id="a-retry").best_step == 1
    assert claims[-1]["uid"] == before["uid"]
    assert claims[-1]["annotations"]["ml-assets/run"] == "a-retry"
    assert sum(line.startswith("started ") for line in launch.log) == 1
    assert list(api.objects) == []


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_drained_launcher_leaves_its_jobset_a_cancelled_one_does_not(
    api: ApiServer, launch: LaunchedHere, comes_back: bool
) -> None:
    api.on_job = with_workers(RUNNING)

    def interrupt(line: str) -> None:
        if "pods run on" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch.run(interrupt, comes_back=lambda _: comes_back)
    assert (("jobsets", launch.name) in api.objects) == comes_back
    assert any(kind == "pods" for kind, _ in api.objects) == comes_back


def test_a_cancelled_run_removes_the_jobset(api: ApiServer, launch: LaunchedHere) -> None:
    api.on_job = with_workers(RUNNING)

    def cancel(line: str) -> None:
        if "pods run on" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch.run(cancel)
    assert list(api.objects) == []


def test_a_failed_jobset_is_told_to_its_run_and_begins_anew_for_others(
    api: ApiServer, launch: LaunchedHere
) -> None:
    """A launch with more memory must not meet the failure of the launch before."""
    api.on_job = with_workers(DIVERGED, "Failed", terminalState="Failed")

    def die(line: str) -> None:
        raise ArtifactsUnavailable(f"before {line}")

    with pytest.raises(ArtifactsUnavailable):
        launch.run(die)
    left = api.objects["jobsets", launch.name]["metadata"]["uid"]
    with pytest.raises(Diverged):
        launch.run(run_id="the-run")
    api.on_job = with_workers(DIVERGED, "Failed", terminalState="Failed")
    with pytest.raises(ArtifactsUnavailable):
        launch.run(die)
    api.on_job = finishing(launch)
    assert launch.run(run_id="another-run").best_step == 1
    assert left not in str(api.objects)
    assert list(api.objects) == []


@pytest.mark.parametrize(
    ("back_end", "missing", "error", "remedy"),
    [
        ("jobset", "jobsets", JobSetsMissing, r"install JobSet 0\.10 .*ML_ASSETS_KUBERNETES_BACKEND to job"),
        (
            "trainjob",
            "trainingruntimes",
            TrainJobsMissing,
            r"install Kubeflow Trainer .*BACKEND to jobset or job",
        ),
    ],
)
def test_a_cluster_without_jobsets_is_refused_with_what_helps(
    api: ApiServer, launch: LaunchedHere, missing: str, error: type[ClusterRefused], remedy: str
) -> None:
    api.trouble("POST", f"/{missing}", 404)
    with pytest.raises(error, match=remedy):
        launch.run()
    assert list(api.objects) == []


def test_a_jobset_that_no_controller_sees_is_given_up(
    api: ApiServer, launch: LaunchedHere, back_end: str
) -> None:
    named = {"name": "refused", "creationTimestamp": now()}
    api.put("events", {"metadata": named, "message": "denied the request: no queue"})
    with pytest.raises(
        PodNotStarted,
        match=rf"no new Job for .*JobSet's controller.*describe {back_end} .*denied the request",
    ):
        launch.run()
    assert list(api.objects) == [("events", "refused")]


@pytest.mark.parametrize("back_end", ["trainjob"])
@pytest.mark.parametrize("is_lost", [False, True], ids=["answered", "answer lost"])
def test_a_trainjob_owns_the_runtime_that_it_names(
    api: ApiServer, launch: LaunchedHere, is_lost: bool
) -> None:
    api.on_job = with_workers(RUNNING)
    if is_lost:
        api.trouble("POST", "/trainjobs")
    leave_running(launch)
    made = api.objects["trainjobs", launch.name]
    (runtime,) = api.names("trainingruntimes")
    assert made["spec"]["runtimeRef"] == {"kind": "TrainingRuntime", "name": runtime}
    (owner,) = api.objects["trainingruntimes", runtime]["metadata"]["ownerReferences"]
    assert owner["uid"] == made["metadata"]["uid"]
    assert launch.launcher.prune(lambda run: run == "the-run") == [launch.name]
    assert list(api.objects) == []


@pytest.mark.parametrize("back_end", ["trainjob"])
def test_a_trainjob_waits_until_trainer_has_seen_its_runtime(api: ApiServer, launch: LaunchedHere) -> None:
    """Trainer's webhook read the runtimes a moment late: it refused 3 of 8 trainings."""
    api.on_job = finishing(launch)
    api.trouble("POST", "/trainjobs", 403, message="the quota of TrainJobs")
    with pytest.raises(ClusterRefused, match="the quota"):
        launch.run()
    assert list(api.objects) == []
    said = "spec.runtimeRef: specified trainingRuntime must be created before the TrainJob is created"
    api.trouble("POST", "/trainjobs", 403, times=2, message=said)
    assert launch.run().best_step == 1
    assert list(api.objects) == []


@pytest.mark.parametrize("back_end", ["trainjob"])
def test_a_runtime_has_its_owner_though_trainer_changes_it_too(api: ApiServer, launch: LaunchedHere) -> None:
    """Trainer writes a finalizer into each runtime that a TrainJob names, as soon as it sees the TrainJob."""

    def use(api: ApiServer, made: Document) -> None:
        runtime = api.objects["trainingruntimes", made["spec"]["runtimeRef"]["name"]]
        used = {**runtime["metadata"], "finalizers": ["trainer.kubeflow.org/resource-in-use"]}
        api.put("trainingruntimes", {**runtime, "metadata": used})
        with_workers(RUNNING)(api, made)

    api.on_job = use
    leave_running(launch)
    (name,) = api.names("trainingruntimes")
    meta = api.objects["trainingruntimes", name]["metadata"]
    uid = api.objects["trainjobs", launch.name]["metadata"]["uid"]
    assert [one["uid"] for one in meta["ownerReferences"]] == [uid]
    assert meta["finalizers"] != []


@pytest.mark.parametrize("back_end", ["trainjob"])
def test_a_trainjob_made_meanwhile_by_another_launcher_is_followed(
    api: ApiServer, launch: LaunchedHere
) -> None:
    api.on_job = with_workers(RUNNING)
    leave_running(launch)
    theirs = {key: one for key, one in api.objects.items() if key[0] in {"trainjobs", "trainingruntimes"}}
    of_trainer = {key: one for key, one in api.objects.items() if key not in theirs}
    api.objects.clear()

    def race(request: str) -> None:
        if request.startswith("POST trainingruntimes"):
            api.objects.update(theirs | of_trainer)

    def finish(line: str) -> None:
        if "pods run on" in line:
            runtimes.extend(api.names("trainingruntimes"))
            launch.finish()
            complete_job(api, f"{launch.name}-workers-0")

    runtimes: list[str] = []
    api.on_done = race
    assert launch.run(finish).best_step == 1
    assert runtimes == [name for kind, name in theirs if kind == "trainingruntimes"]
    assert list(api.objects) == []


def test_a_range_of_nodes_uses_jobs(api: ApiServer, launch: LaunchedHere) -> None:
    def done(api: ApiServer, made: Document) -> None:
        with_pod(DONE, "Complete")(api, made)
        launch.finish()

    api.on_job = done
    launch.job = dataclasses.replace(launch.job, settings=TrainingSettings(workers=2))
    assert launch.run(profile=ResourceProfile(nodes=NodeRange(min=1, max=2))).best_step == 1
    assert [one for one in api.requests if one.startswith("POST jobsets")] == []
    assert list(api.objects) == []


@pytest.mark.parametrize(
    ("back_end", "later"),
    [
        ("job", "jobset"),
        ("jobset", "job"),
        ("jobset", "trainjob"),
        ("trainjob", "jobset"),
        ("trainjob", "job"),
    ],
)
def test_a_training_keeps_the_back_end_in_which_it_began(
    api: ApiServer, launch: LaunchedHere, back_end: str, later: str
) -> None:
    """Two would train at once, and write the same checkpoints."""
    api.on_job = with_pod(RUNNING) if back_end == "job" else with_workers(RUNNING)

    leave_running(launch)
    (job,) = api.names("jobs")
    made = [one for one in api.requests if one.startswith("POST")]
    launch.settings = launch.settings.model_copy(update={"backend": later})

    def complete(line: str) -> None:
        if line.startswith("attached to "):
            launch.finish()
            complete_job(api, job)

    assert launch.run(complete).best_step == 1
    again = [one for one in api.requests if one.startswith("POST")][len(made) :]
    assert [one for one in again if "leases" not in one] == []
    assert list(api.objects) == []


def test_a_restart_of_the_pods_does_not_hide_the_back_end(api: ApiServer, launch: LaunchedHere) -> None:
    """While its pods save, a JobSet that restarts has only a Job that is being deleted."""
    api.on_job = with_workers(RUNNING)
    leave_running(launch)
    (name,) = api.names("jobs")
    job = api.objects["jobs", name]
    api.put("jobs", {**job, "metadata": {**job["metadata"], "deletionTimestamp": now()}})
    made = [one for one in api.requests if one.startswith("POST")]
    launch.settings = launch.settings.model_copy(update={"backend": "job"})

    def complete(line: str) -> None:
        if line.startswith("attached to "):
            launch.finish()

    assert launch.run(complete).best_step == 1
    assert [one for one in api.requests if one.startswith("POST")] == made


@pytest.mark.parametrize("back_end", ["trainjob"])
def test_a_launcher_without_the_right_to_trainjobs_removes_no_pods(
    api: ApiServer, launch: LaunchedHere
) -> None:
    """The chart takes the right away with the back end."""
    api.on_job = with_workers(RUNNING)
    leave_running(launch)
    pods = api.names("pods")
    launch.settings = launch.settings.model_copy(update={"backend": "jobset"})
    api.trouble("GET", "/trainjobs", 403)
    with pytest.raises(ClusterRefused, match="denied access"):
        launch.run()
    assert api.names("pods") == pods != []


def test_only_jobsets_of_ended_runs_are_pruned(api: ApiServer, launch: LaunchedHere) -> None:
    api.on_job = with_workers(RUNNING)

    leave_running(launch)
    assert launch.launcher.prune() == []
    assert launch.launcher.prune(lambda run: run == "another") == []
    assert api.names("jobs") == [f"{launch.name}-workers-0"]
    assert launch.launcher.prune(lambda run: run == "the-run") == [launch.name]
    assert list(api.objects) == []


@pytest.mark.parametrize("back_end", ["jobset"])
def test_jobsets_are_pruned_after_a_change_to_trainjobs(api: ApiServer, launch: LaunchedHere) -> None:
    api.on_job = with_workers(RUNNING)
    leave_running(launch)
    launch.settings = launch.settings.model_copy(update={"backend": "trainjob"})
    assert launch.launcher.prune(lambda run: run == "the-run") == [launch.name]
    assert list(api.objects) == []


@pytest.mark.parametrize("labels", [{}, {"ml-assets/training": "{}"}], ids=["no training", "of a training"])
def test_an_object_with_our_labels_that_no_launcher_made_stays(
    api: ApiServer, launch: LaunchedHere, back_end: str, labels: dict[str, str]
) -> None:
    """With the label of another training, its removal would end that training."""
    api.on_job = with_workers(RUNNING)
    leave_running(launch)
    own = {name: value.format(launch.name.removeprefix("train-")) for name, value in labels.items()}
    managed = {"app.kubernetes.io/managed-by": "ml-assets"}
    meta = {"name": "theirs", "labels": managed | own, "annotations": {"ml-assets/run": "ended"}}
    api.put(f"{back_end}s", {"metadata": meta, "spec": {}})
    there = set(api.objects)
    said: list[str] = []
    assert launch.launcher.prune(lambda run: run == "ended", said.append) == []
    assert set(api.objects) == there
    (line,) = said
    assert "theirs" in line
    assert "no launcher created it" in line


def test_a_job_that_its_queue_admits_again_has_other_pods(api: ApiServer, launch: LaunchedHere) -> None:
    """Pods that ignored SIGTERM are killed, and the suspended Job does not fail by them."""
    killed = pod_documents.ended(0, 137, deleted=now())
    name = f"{launch.name}-workers-0"

    def suspended(api: ApiServer, made: Document) -> None:
        with_workers(killed)(api, made)
        job = api.objects["jobs", name]
        api.put("jobs", {**job, "spec": {**job["spec"], "suspend": True}})

    def admit(line: str) -> None:
        job = api.objects["jobs", name]
        if line.startswith("the attempt ended: "):
            old = api.objects["pods", f"{name}-0-x"]["metadata"]
            named = {**old, "name": f"{name}-0-y", "uid": "another", "deletionTimestamp": None}
            api.put("pods", {**RUNNING, "metadata": named})
            api.put("jobs", {**job, "spec": {**job["spec"], "suspend": False}})
        if "1 pods run on" in line and f"{name}-0-y" in api.names("pods"):
            launch.finish()
            complete_job(api, name)

    api.on_job = suspended
    assert launch.run(admit, ResourceProfile(queue="team-a")).best_step == 1
    (end,) = [line for line in launch.log if line.startswith("the attempt ended: ")]
    assert "queue team-a evicted the training" in end
    assert sum("1 pods run on" in line for line in launch.log) == 2
    assert list(api.objects) == []


@pytest.mark.parametrize("back_end", ["job", "jobset", "trainjob"])
@pytest.mark.parametrize(("isolated", "nodes"), [(True, 2), (True, 1), (False, 2)])
def test_an_isolated_training_of_several_pods_has_a_policy_of_its_own(
    api: ApiServer, launch: LaunchedHere, back_end: str, isolated: bool, nodes: int
) -> None:
    """It names its owner, with which the cluster deletes it: `list` answers without the kind of the documents."""
    api.on_job = with_pod(RUNNING) if back_end == "job" else with_workers(RUNNING)
    launch.settings = launch.settings.model_copy(update={"isolated": isolated})
    launch.job = dataclasses.replace(launch.job, settings=TrainingSettings(workers=nodes))

    def finish(request: str) -> None:
        if request.startswith("GET jobs "):  # it follows the pods
            launch.finish()
            owners.update({one["metadata"]["uid"]: kind for (kind, _), one in api.objects.items()})
            complete_job(api, next(iter(api.names("jobs"))))

    owners: dict[str, str] = {}
    api.on_done = finish
    assert launch.run(profile=ResourceProfile(nodes=nodes)).best_step == 1
    made = [one for (kind, _), one in api.objects.items() if kind == "networkpolicies"]
    if not isolated or nodes == 1:
        assert made == []
        return
    (policy,) = made
    (reference,) = policy["metadata"]["ownerReferences"]
    assert owners[reference["uid"]] == f"{reference['kind'].lower()}s" == f"{back_end}s"
    labels = {
        "app.kubernetes.io/managed-by": "ml-assets",
        "ml-assets/training": launch.name.removeprefix("train-"),
    }
    same = {"podSelector": {"matchLabels": labels}}
    assert policy["spec"] == {**same, "policyTypes": ["Ingress"], "ingress": [{"from": [same]}]}
