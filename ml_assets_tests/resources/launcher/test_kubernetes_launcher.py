"""The launcher's own life against a cluster and an object store that refuse, forget and go away."""

import re
from pathlib import Path
from typing import Any

import pytest

from ml_assets_tests.resources.launcher import pod_documents
from ml_assets_tests.resources.launcher.api_server import ApiServer
from ml_assets_tests.resources.launcher.launched_here import LaunchedHere, with_pod
from ml_assets_tests.resources.launcher.object_store import BUCKET, ObjectStore
from ml_assets_tests.resources.launcher.scripted_jobs import job_of
from resources.artifacts import ArtifactsUnavailable, FolderArtifacts
from resources.job.errors import BadConfiguration, Diverged
from resources.job.events import EVENTS, TrainingEvent, read_events, training_folder_name
from resources.job.reserved import Reserved
from resources.launcher.kubernetes.exchange import share_events
from resources.launcher.resource_profile import ResourceProfile


def of_the_training(api: ApiServer) -> dict[tuple[str, str], str]:
    """The uids of what a launcher made, its Lease apart."""
    return {key: one["metadata"]["uid"] for key, one in sorted(api.objects.items()) if key[0] != "leases"}


def run_out(api: ApiServer) -> None:
    """Time passes: nobody has renewed the Lease for long."""
    ((key, lease),) = [(key, one) for key, one in api.objects.items() if key[0] == "leases"]
    api.put(key[0], {**lease, "spec": {**lease["spec"], "renewTime": "2026-01-01T00:00:00.000000Z"}})


DIVERGED = pod_documents.ended(0, 65, message="the loss was nan at step 7")
RUNNING = pod_documents.pod(0, state={"running": {"startedAt": pod_documents.CREATED}})


@pytest.mark.parametrize("status", [403, 503])
def test_a_refused_clean_up_hides_no_cause_and_gives_the_lease_back(
    api: ApiServer, launch: LaunchedHere, status: int
) -> None:
    api.on_job = with_pod(DIVERGED, "Failed")
    api.trouble("DELETE", "/pods", status, times=999)
    with pytest.raises(Diverged, match="nan at step 7") as failure:
        launch.run()
    (note,) = failure.value.__notes__
    assert re.match("its pods .*daemon prunes them", note)
    assert f"trouble {status}" in note
    assert api.names("leases") == []
    assert api.names("jobs") == [f"{launch.name}-1"]


def test_a_training_that_is_done_is_done_though_nothing_may_be_removed(
    api: ApiServer, launch: LaunchedHere
) -> None:
    def done(api: ApiServer, job: dict[str, Any]) -> None:
        with_pod(pod_documents.ended(0, 0), "Complete")(api, job)
        launch.finish()

    api.on_job = done
    api.trouble("DELETE", "/pods", 403, times=999)
    assert launch.run().best_step == 1
    assert any("could not be deleted" in line for line in launch.log)
    assert api.names("leases") == []


def test_gpus_are_reported_from_the_placement_of_a_pod_to_its_end(
    api: ApiServer, launch: LaunchedHere
) -> None:
    """The reading goes to the events in the store, so that a run that finds the finished training bills the same."""
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": pod_documents.CREATED}
    pod = pod_documents.ended(0, 0, conditions=(placed,))
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = "2026-11-21T12:10:00Z"

    def done(api: ApiServer, job: dict[str, Any]) -> None:
        with_pod(pod, "Complete")(api, job)
        launch.finish()

    api.on_job = done
    launch.run(profile=ResourceProfile(gpus=2))
    (reading,) = [event for event in launch.events if event.kind == "reserved"]
    held = Reserved.of(reading)
    assert (held.places, held.place_seconds, held.gpus, held.cores, held.memory_bytes) == (
        0,
        600.0,
        2,
        1.0,
        4 * 2**30,
    )
    stored = launch.store.objects[f"p/{training_folder_name(launch.job)}/{EVENTS}"]
    assert reading.to_line() in stored.decode().splitlines()


def test_leftovers_of_another_launch_are_removed_and_not_classified(
    api: ApiServer, launch: LaunchedHere
) -> None:
    api.on_job = with_pod(DIVERGED, "Failed")
    api.trouble("DELETE", "/pods", 403)
    with pytest.raises(Diverged):
        launch.run()
    left = api.objects["jobs", f"{launch.name}-1"]["metadata"]["uid"]

    def done(api: ApiServer, job: dict[str, Any]) -> None:
        assert job["metadata"]["uid"] != left
        with_pod(pod_documents.ended(0, 0), "Complete")(api, job)
        launch.finish()

    api.on_job = done
    assert launch.run().best_step == 1
    assert list(api.objects) == []


def test_storage_away_while_a_launcher_attaches_costs_no_healthy_pod(
    api: ApiServer, launch: LaunchedHere, store: ObjectStore
) -> None:
    """The first launcher loses S3 while its pods train; the next one finds them, and S3 still away."""
    api.on_job = with_pod(RUNNING)

    def lose_storage(line: str) -> None:
        if "pods run on" in line:
            raise ArtifactsUnavailable("S3 did not answer")

    with pytest.raises(ArtifactsUnavailable):
        launch.run(lose_storage)
    lease = api.objects["leases", launch.name]
    assert lease["metadata"]["annotations"]["ml-assets/run"] == "the-run"
    before = of_the_training(api)
    assert [kind for kind, _ in before] == ["jobs", "pods", "services"]

    run_out(api)

    def go_away(request: str) -> None:
        if request.startswith("PUT leases"):  # it leads now, and looks for a result next
            store.is_away = True

    api.on_done = go_away
    with pytest.raises(ArtifactsUnavailable, match=r"S3 at.*within 1 s"):
        launch.run()
    assert store.refused
    assert of_the_training(api) == before

    api.on_done, store.is_away = (lambda _: None), False
    run_out(api)

    def complete(line: str) -> None:
        if line.startswith("attached to "):
            launch.finish()
            job = api.objects["jobs", f"{launch.name}-1"]
            api.put("jobs", {**job, "status": {"conditions": [{"type": "Complete", "status": "True"}]}})

    assert launch.run(complete).best_step == 1
    assert sum(line.startswith("started ") for line in launch.log) == 1
    assert list(api.objects) == []


def event(step: int) -> TrainingEvent:
    return TrainingEvent(kind="metrics", step=step, time=1000.0 + step, values={"loss": 1 / (step + 3)})


def test_events_outlive_their_pod_and_none_comes_twice(tmp_path: Path) -> None:
    """Some events reached a launcher only through the pod's log."""
    artifacts, job = FolderArtifacts(tmp_path), job_of("done")
    folder = artifacts.folder(training_folder_name(job))
    stored, told = [event(0), event(1)], [event(1), event(2), event(3)]
    (folder / EVENTS).write_text("".join(f"{one.to_line()}\n" for one in stored))
    for _ in range(2):
        share_events(artifacts, job, told)
        assert [one.step for one in read_events(folder)] == [0, 1, 2, 3]


def test_there_may_be_no_events_yet(tmp_path: Path) -> None:
    artifacts, job = FolderArtifacts(tmp_path), job_of("done")
    folder = artifacts.folder(training_folder_name(job))
    share_events(artifacts, job, [])
    assert read_events(folder) == []
    share_events(artifacts, job, [event(7)])
    assert [one.step for one in read_events(folder)] == [7]


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_drained_launcher_leaves_its_pods_a_cancelled_one_does_not(
    api: ApiServer, launch: LaunchedHere, comes_back: bool
) -> None:
    """A drained run's Lease expires. Without a Lease the next launcher would take the Job for a leftover."""
    api.on_job = with_pod(RUNNING)
    asked: list[type[BaseException]] = []

    def interrupt(line: str) -> None:
        if "pods run on" in line:
            raise KeyboardInterrupt

    def answer(error: BaseException) -> bool:
        asked.append(type(error))
        return comes_back

    with pytest.raises(KeyboardInterrupt):
        launch.run(interrupt, comes_back=answer)
    assert asked == [KeyboardInterrupt]
    if not comes_back:
        assert list(api.objects) == []
        return
    before = of_the_training(api)
    assert [kind for kind, _ in before] == ["jobs", "pods", "services"]

    def complete(line: str) -> None:
        if line.startswith("attached to "):
            assert of_the_training(api) == before
            launch.finish()
            job = api.objects["jobs", f"{launch.name}-1"]
            api.put("jobs", {**job, "status": {"conditions": [{"type": "Complete", "status": "True"}]}})

    run_out(api)
    assert launch.run(complete).best_step == 1
    assert list(api.objects) == []


@pytest.mark.parametrize("prefix", ["team-*", "team-?", "${aws:username}", "p" * 300])
def test_a_prefix_that_no_policy_of_keys_can_name_is_refused(
    api: ApiServer, launch: LaunchedHere, prefix: str
) -> None:
    """A policy takes `*` of a prefix as any text: workers of team-a would reach the files of team-b."""
    launch.settings = launch.settings.model_copy(update={"s3_role": "arn:aws:iam::123456789012:role/workers"})
    launch.artifacts.url = f"s3://{BUCKET}/{prefix}"
    with pytest.raises(BadConfiguration, match="ML_ASSETS_ARTIFACTS_URL"):
        launch.run()
    assert api.requests == []
    assert launch.store.objects == {}
