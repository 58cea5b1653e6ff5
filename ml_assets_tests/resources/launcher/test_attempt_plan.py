"""Plan of the next attempt, by the ends of those before: its pods, its settings, and its search for more pods."""

import pytest

from resources.launcher.kubernetes.capacity import GROW_SECONDS, LONGEST_GROW_SECONDS, AttemptPlan
from resources.launcher.kubernetes.classify import AttemptEnd

FIRST = AttemptPlan(number=1, nodes=4)
LOST = AttemptEnd(kind="preempted", said="pod 1 on node2 was removed by the cluster")
FEWER = AttemptEnd(kind="resized", said="3 of 4 pods have a node", nodes=3)
MORE = AttemptEnd(kind="resized", said="there is room for 4 pods instead of 3", nodes=4)


def after(*ends: AttemptEnd) -> AttemptPlan:
    """The attempt that follows a first one of four pods and these ends."""
    plan = FIRST
    for end in ends:
        plan = plan.ended(end, has_trained=True).then()
    return plan


def test_what_is_taken_away_is_asked_for_again_and_is_the_cause() -> None:
    plan = after(LOST)
    assert (plan.number, plan.nodes, plan.failures, plan.cause) == (2, 4, 0, LOST.said)


def test_a_failure_uses_budget_and_is_told_by_its_own_agents() -> None:
    plan = after(LOST, AttemptEnd(kind="failed", said="pod 0 ended with exit code 3"))
    assert (plan.nodes, plan.failures, plan.cause) == (4, 1, "")


def test_an_attempt_too_large_gives_way_to_one_that_fits() -> None:
    """An attempt that is too large interrupts no training, so the plan keeps the cause of the attempt before it."""
    plan = after(LOST, FEWER)
    assert (plan.number, plan.nodes, plan.failures, plan.cause) == (3, 3, 0, LOST.said)
    assert after(LOST, FEWER, LOST).nodes == 3


def test_a_training_grows_to_what_there_is_room_for_and_says_so() -> None:
    plan = after(LOST, FEWER, MORE)
    assert (plan.nodes, plan.failures, plan.cause) == (4, 0, MORE.said)


@pytest.mark.parametrize("times", [0, 1, 3, 30])
def test_room_is_looked_for_later_each_time_that_pods_did_not_fit(times: int) -> None:
    plan = after(*[FEWER, MORE] * times)
    assert plan.grow_after == min(GROW_SECONDS * 2**times, LONGEST_GROW_SECONDS)


def test_attempts_lost_before_they_train_are_counted_in_a_row() -> None:
    plan = FIRST
    for has_trained, count in ((False, 1), (False, 2), (True, 0), (False, 1)):
        plan = plan.ended(LOST, has_trained=has_trained)
        assert plan.fruitless == count
    assert plan.ended(FEWER, has_trained=False).fruitless == 1, "not taken away"
    assert plan.ended(AttemptEnd(kind="failed", said="pod 0 ended"), has_trained=False).fruitless == 0
