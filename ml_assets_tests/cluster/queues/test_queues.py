"""Trainings that go through real queues: who waits and says so, who gives way and goes on, who would wait in vain."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml

from deployment.render import EXAMPLE
from deployment.testbed.cluster.commands import CommandFailed
from ml_assets_tests.cluster.cluster_environment import REPOSITORY, ClusterEnvironment, waited_for
from ml_assets_tests.cluster.helm import RELEASE, helm, install, make_namespace
from ml_assets_tests.cluster.launched_job import KINDS_OF, LaunchedJob, logged_steps
from ml_assets_tests.cluster.queues.conftest import Begin, MakeQueue, said, stepped
from resources.job.errors import Unschedulable
from resources.job.events import TrainingEvent
from resources.launcher.kubernetes.queue_priority import unsaved_level
from resources.platform import Platform
from resources.settings import KubernetesSettings

Launch = Callable[..., LaunchedJob]
pytestmark = pytest.mark.timeout(900)

ROOM_FOR_ONE = {"cpu": "200m"}
"""Two pods of a small training: 100m each."""
MINUTE = 60.0
LONG = 20_000
"""Steps of a training that is not meant to come to its end by itself: 50 ms each."""


def test_a_training_waits_for_its_quota_and_says_so(
    launching: Launch, queue: MakeQueue, begin: Begin
) -> None:
    """The training starts when there is room."""
    name = queue("team", **ROOM_FOR_ONE)
    first, second = launching(), launching()
    one = begin(first, first.profile("steps", steps=300, nodes=2, queue=name))
    stepped(first, 1)
    two = begin(second, second.profile("steps", steps=20, nodes=2, queue=name))
    why = said(second, f"waits in queue {name}: ")
    assert "unused quota for cpu" in why
    assert not one.done(), "it was waited for"
    assert second.objects("pods") == []
    assert one.result().attempts == two.result().attempts == 1
    assert said(second, "2 pods run on ").endswith("admitted by its queue")
    assert (first.left(), second.left()) == ([], [])


def test_a_higher_priority_goes_first_and_the_preempted_job_resumes(
    launching: Launch, queue: MakeQueue, begin: Begin, urgent: str
) -> None:
    name = queue("team", **ROOM_FOR_ONE)
    nightly, hurried = launching(max_attempts=1), launching()
    early = begin(nightly, nightly.profile("steps steps", steps=400, nodes=2, queue=name))
    stepped(nightly, 20)
    late = begin(hurried, hurried.profile("steps", steps=20, nodes=2, queue=name, priority_class=urgent))
    assert late.result().attempts == 1
    assert not early.done(), "it gave way"
    assert early.result().attempts == 2
    assert "Preempted to accommodate" in said(nightly, f"queue {name} evicted the training: ")
    assert any("0 of 1 failures" in line for line in nightly.log), "budget unused"
    assert logged_steps(nightly.events) == list(range(400))
    assert (nightly.left(), hurried.left()) == ([], [])


@pytest.mark.parametrize("back_end", ["jobset", "trainjob"])
def test_a_jobset_gives_way_to_a_higher_priority_and_resumes(
    launching: Launch,
    queue: MakeQueue,
    begin: Begin,
    urgent: str,
    restarted: Callable[[LaunchedJob, str], LaunchedJob],
    back_end: str,
) -> None:
    """The queue suspends it. Its pods save and end; it waits in the queue, and no failure counts."""
    name = queue("team", **ROOM_FOR_ONE)
    nightly, hurried = restarted(launching(max_attempts=1), back_end), restarted(launching(), back_end)
    early = begin(nightly, nightly.profile("steps steps", steps=400, nodes=2, queue=name))
    stepped(nightly, 20)
    assert said(nightly, "2 pods run on ").endswith("admitted by its queue")
    waited_for(lambda: levels(nightly, f"{back_end}s") == [unsaved_level(600)], "its level", 60)
    late = begin(hurried, hurried.profile("steps", steps=20, nodes=2, queue=name, priority_class=urgent))
    assert late.result().attempts == 1
    assert not early.done(), "it gave way"
    # Its Job is admitted again, or made again where a pod's exit code came before the suspension.
    if early.result().attempts == 2:
        said(nightly, "starts attempt 2; 0 of 1 failures", 0)
    assert "Preempted to accommodate" in said(nightly, f"queue {name} evicted the training: ")
    assert logged_steps(nightly.events) == list(range(400))
    kinds = ",".join((*KINDS_OF[back_end], "jobs", "pods"))
    waited_for(lambda: (nightly.objects(kinds), hurried.objects(kinds)) == ([], []), "nothing to be left", 60)


def test_a_team_borrows_unused_quota_until_its_owner_asks_for_it(
    launching: Launch, queue: MakeQueue, begin: Begin
) -> None:
    borrower, owner = (queue(name, "teams", **ROOM_FOR_ONE) for name in ("borrower", "owner"))
    borrowing = [launching(max_attempts=1), launching(max_attempts=1)]
    running = [
        begin(launch, launch.profile("steps steps", steps=500, nodes=2, queue=borrower))
        for launch in borrowing
    ]
    for launch in borrowing:  # both: twice its quota
        stepped(launch, 10)
    owning = launching()
    own = begin(owning, owning.profile("steps", steps=20, nodes=2, queue=owner))
    assert own.result().attempts == 1
    attempts = sorted(one.result().attempts for one in running)
    assert attempts == [1, 2], "one gave way"
    for launch in borrowing:
        assert logged_steps(launch.events) == list(range(500))
        assert launch.left() == []


def test_the_training_that_has_just_saved_gives_way_not_the_youngest(
    launching: Launch, queue: MakeQueue, begin: Begin
) -> None:
    """Kueue alone evicts the youngest. It has not saved, so an eviction would lose more there."""
    borrower, owner = (queue(name, "teams", **ROOM_FOR_ONE) for name in ("borrower", "owner"))
    saving, unsaved = launching(max_attempts=1), launching(max_attempts=1)
    older = begin(saving, saving.profile("saves steps", steps=1200, nodes=2, queue=borrower))
    stepped(saving, 40)
    younger = begin(unsaved, unsaved.profile("steps steps", steps=1000, nodes=2, queue=borrower))
    stepped(unsaved, 1)
    waited_for(lambda: levels(unsaved) > levels(saving), "the queue to know who has saved", 60)
    owning = launching()
    own = begin(owning, owning.profile("steps", steps=20, nodes=2, queue=owner))
    assert own.result().attempts == 1
    assert (older.result().attempts, younger.result().attempts) == (2, 1)
    assert logged_steps(saving.events) == list(range(1200))


def levels(launch: LaunchedJob, kind: str = "jobs") -> list[int]:
    """Return the priorities of the training's records in Kueue, which has one for each object of `kind`."""
    uids = launch.uids(kind)
    return [
        one["spec"]["priority"]
        for one in launch.cluster.objects("workloads.kueue.x-k8s.io")
        if one["metadata"]["labels"]["kueue.x-k8s.io/job-uid"] in uids
    ]


def test_at_the_bound_on_waiting_a_training_goes_before_one_that_runs(
    launching: Launch, queue: MakeQueue, begin: Begin
) -> None:
    """Both have the same class. The one that runs saves, waits in turn, and goes on."""
    name = queue("team", **ROOM_FOR_ONE)
    bound = {"waiting_hours": 10 / 3600}
    running, waiting = launching(max_attempts=1), launching().with_kubernetes(**bound)
    long = begin(running, running.profile("steps steps", steps=1500, nodes=2, queue=name))
    stepped(running, 1)
    began = time.monotonic()
    short = begin(waiting, waiting.profile("steps", steps=20, nodes=2, queue=name))
    assert short.result().attempts == 1
    assert time.monotonic() - began < MINUTE
    assert not long.done(), "it gave way"
    assert long.result().attempts == 2
    assert logged_steps(running.events) == list(range(1500))


def test_a_place_nobody_can_get_is_refused_with_what_helps(launching: Launch, queue: MakeQueue) -> None:
    name = queue("team", **ROOM_FOR_ONE)
    launch = launching(workers=4).with_kubernetes(unschedulable_seconds=4)
    for asked, words in (
        ({"queue": "nowhere"}, r"LocalQueue nowhere doesn't exist.* Correct resources\.queue"),
        ({"queue": name, "nodes": 4}, r"maximum capacity .*request less in resources"),
    ):
        began = time.monotonic()
        with pytest.raises(Unschedulable, match=words):
            launch.run(launch.profile("done", **asked))
        # Not the patience of an installation that sets none.
        assert time.monotonic() - began < KubernetesSettings().unschedulable_seconds
        assert launch.left() == []


def test_a_queue_deleted_under_a_waiting_training_is_named_within_a_minute(
    launching: Launch, queue: MakeQueue, begin: Begin, managed: ClusterEnvironment
) -> None:
    """With the times of an installation that sets none. The training that runs already goes on."""
    name = queue("team", **ROOM_FOR_ONE)
    first, second = launching(), launching()
    one = begin(first, first.profile("steps", steps=1200, nodes=2, queue=name))
    stepped(first, 1)
    two = begin(second, second.profile("done", nodes=2, queue=name))
    said(second, f"waits in queue {name}: ")
    managed.kubectl("delete", "localqueue", name, "--wait=false")
    deleted = time.monotonic()
    with pytest.raises(Unschedulable, match=f"LocalQueue {name} doesn't exist.* make the queue again"):
        two.result()
    assert time.monotonic() - deleted < MINUTE
    assert second.left() == []
    assert one.result().attempts == 1


def test_a_training_that_waits_is_cancelled_at_once(launching: Launch, queue: MakeQueue) -> None:
    name = queue("team", **ROOM_FOR_ONE)
    first, second = launching(), launching()
    grace_seconds = 100
    profile = first.profile("steps", steps=LONG, nodes=2, queue=name, grace_seconds=grace_seconds)
    cancelled: list[float] = []

    def cancel(event: TrainingEvent) -> None:
        """Cancel both launches: the second as soon as it waits, then the first."""

        def heard(line: str) -> None:
            if "waits in queue" in line:
                cancelled.append(time.monotonic())
                raise _Cancelled

        launcher = Platform(second.settings).launcher
        with pytest.raises(_Cancelled):
            launcher.run(second.job, second.folder, second.events.append, heard, profile)
        cancelled.append(time.monotonic())
        assert second.left() == []
        raise _Cancelled

    launcher = Platform(first.settings).launcher
    with pytest.raises(_Cancelled):
        launcher.run(first.job, first.folder, cancel, first.log.append, profile)
    cancelled.append(time.monotonic())
    assert first.left() == []
    asked, without, over = cancelled
    assert without - asked < grace_seconds
    assert over - without < grace_seconds


class _Cancelled(BaseException):
    """Interruption of a launcher, like that at the end of a run."""


def test_a_team_with_a_queue_starts_no_training_beside_it(managed: ClusterEnvironment) -> None:
    """The chart's admission policy; what it installs for the queue is accepted by Kueue."""
    team = ClusterEnvironment(managed.cluster, f"team-{managed.namespace}", managed.s3_endpoint_url)
    managed.apply(yaml.safe_load((REPOSITORY / "deployment" / "helm" / "any-node.yaml").read_text()))
    make_namespace(team)
    install(team, f"--values={REPOSITORY / EXAMPLE}", "--set=queue.enabled=true,prepare=false")
    try:
        refused: list[str] = []

        def is_refused() -> bool:
            try:
                team.kubectl("create", "--dry-run=server", "--filename=-", stdin=json.dumps(idle_job("free")))
            except CommandFailed as error:
                refused.append(str(error))
            return bool(refused)

        waited_for(is_refused, "the policy to be in force", 60)
        assert "resources: {queue: trainings}" in refused[-1]
        queued = idle_job("queued", {"kueue.x-k8s.io/queue-name": "trainings"})
        team.kubectl("create", "--dry-run=server", "--filename=-", stdin=json.dumps(queued))
    finally:
        helm(team, "uninstall", RELEASE)
        managed.cluster.kubectl("delete", "namespace", team.namespace, "--wait=false")


def idle_job(name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the Job of a training whose pod would do nothing."""
    container = {"name": "trainer", "image": "none", "command": ["true"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "ml-assets", **(labels or {})}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }
