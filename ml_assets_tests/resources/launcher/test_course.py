"""Plan of the next attempt, by the ends of those before: its pods, its settings, and its search for more pods."""

import pytest

from resources.launcher.kubernetes.course import GROW_SECONDS, LONGEST_GROW_SECONDS, Course
from resources.launcher.kubernetes.judge import End

FIRST = Course(number=1, nodes=4)
LOST = End(kind="preempted", said="pod 1 on node2 was taken away")
FEWER = End(kind="resized", said="3 of 4 pods have found a node", nodes=3)
MORE = End(kind="resized", said="there is room for 4 pods instead of 3", nodes=4)


def after(*ends: End) -> Course:
    """The attempt that follows a first one of four pods and these ends."""
    course = FIRST
    for end in ends:
        course = course.ended(end, has_trained=True).then()
    return course


def test_what_is_taken_away_is_asked_for_again_and_is_the_cause() -> None:
    course = after(LOST)
    assert (course.number, course.nodes, course.failures, course.cause) == (2, 4, 0, LOST.said)


def test_a_failure_uses_budget_and_is_told_by_its_own_agents() -> None:
    course = after(LOST, End(kind="failed", said="pod 0 ended with exit code 3"))
    assert (course.nodes, course.failures, course.cause) == (4, 1, "")


def test_an_attempt_too_large_gives_way_to_one_that_fits_and_interrupted_nothing() -> None:
    course = after(LOST, FEWER)
    assert (course.number, course.nodes, course.failures, course.cause) == (3, 3, 0, LOST.said)
    assert after(LOST, FEWER, LOST).nodes == 3


def test_a_training_grows_to_what_there_is_room_for_and_says_so() -> None:
    course = after(LOST, FEWER, MORE)
    assert (course.nodes, course.failures, course.cause) == (4, 0, MORE.said)


@pytest.mark.parametrize("times", [0, 1, 3, 30])
def test_room_is_looked_for_later_each_time_that_pods_did_not_fit(times: int) -> None:
    course = after(*[FEWER, MORE] * times)
    assert course.grow_after == min(GROW_SECONDS * 2**times, LONGEST_GROW_SECONDS)


def test_attempts_that_are_taken_away_before_they_train_are_counted_in_a_row() -> None:
    course = FIRST
    for has_trained, count in ((False, 1), (False, 2), (True, 0), (False, 1)):
        course = course.ended(LOST, has_trained=has_trained)
        assert course.fruitless == count
    assert course.ended(FEWER, has_trained=False).fruitless == 1, "one that found no room was not taken away"
    assert course.ended(End(kind="failed", said="pod 0 ended"), has_trained=False).fruitless == 0
