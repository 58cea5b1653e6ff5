"""Elastic trainings in a real queue: they take the room that the quota has, and with less of it they go on smaller."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ml_assets_tests.cluster.launched_job import LaunchedJob, logged_steps
from ml_assets_tests.cluster.queues.conftest import Begin, MakeQueue, said, stepped
from ml_assets_tests.cluster.trained_job import assert_as_if_left_alone
from resources.job.errors import Unschedulable
from resources.job.events import recoveries_of
from resources.launcher.resource_profile import ResourceProfile

Launch = Callable[..., LaunchedJob]
pytestmark = pytest.mark.timeout(900)

ROOM_FOR_THREE = {"cpu": "300m"}
"""Three pods of a small training: 100m each."""
TWO_TO_FOUR = {"min": 2, "max": 4}


def test_a_training_takes_the_room_of_its_quota_and_gives_way_in_part(
    make_trained_job: Launch, launching: Launch, queue: MakeQueue, begin: Begin, urgent: str, tmp_path: Path
) -> None:
    """Three of four pods train at once. An urgent training of one pod evicts them; two go on beside it, from the same
    step. Each row is trained once, and the bits are those of one machine.
    """
    name = queue("team", **ROOM_FOR_THREE)
    launch = make_trained_job(
        pace=0.4, workers=4, determinism="bitwise", global_batch=24, lanes=4, max_attempts=1
    )
    profile = ResourceProfile.model_validate(
        {"nodes": TWO_TO_FOUR, "cpu": "100m", "memory": "2Gi", "queue": name}
    )
    training = begin(launch, profile)
    stepped(launch, 5)
    hurried = launching()
    late = begin(hurried, hurried.profile("steps", steps=600, queue=name, priority_class=urgent))
    result = training.result()
    assert late.result().attempts == 1
    assert [one.values["world_size"] for one in launch.events if one.kind == "started"] == [3, 2], launch.log
    assert "0 of 1 failures" in said(launch, f"queue {name} evicted the training: Preempted to accommodate")
    assert result.attempts == 2
    (recovery,) = recoveries_of(launch.events)
    assert (recovery.workers, recovery.steps_lost, recovery.rows_repeated) == ((3, 2), 0, 0)
    assert_as_if_left_alone(launch, result, tmp_path / "here")
    assert hurried.left() == []


def test_a_training_waits_for_its_least_in_a_queue_and_says_so(
    launching: Launch, queue: MakeQueue, begin: Begin
) -> None:
    """All of its pods are more than the whole quota: that is no reason to fail, because its least fits."""
    name = queue("team", **ROOM_FOR_THREE)
    first, second = launching(), launching(workers=4).with_kubernetes(unschedulable_seconds=4)
    one = begin(first, first.profile("steps", steps=600, nodes=2, queue=name))
    stepped(first, 1)
    two = begin(second, second.profile("steps", steps=20, nodes=TWO_TO_FOUR, queue=name))
    why = said(second, f"waits in queue {name} for at least 2 of 4 pods: ")
    assert "maximum capacity" in why
    assert second.objects("pods") == []
    assert one.result().attempts == 1
    assert two.result().attempts == 1
    # Two, if the queue counts the end of the first one's pods one after the other.
    admitted = said(second, f"queue {name} admitted ", 0)
    assert "admitted 2 of 4" in admitted or "admitted 3 of 4" in admitted
    assert logged_steps(second.events) == list(range(20))
    assert (first.left(), second.left()) == ([], [])


def test_a_least_above_the_whole_quota_is_refused(launching: Launch, queue: MakeQueue) -> None:
    name = queue("team", **ROOM_FOR_THREE)
    launch = launching(workers=6).with_kubernetes(unschedulable_seconds=4)
    with pytest.raises(Unschedulable, match=r"maximum capacity .*request less in resources"):
        launch.run(launch.profile("done", nodes={"min": 4, "max": 6}, queue=name))
    assert launch.left() == []
