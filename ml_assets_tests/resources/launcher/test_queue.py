"""The launcher's reading of a queue's records: who waits, who waits in vain, who lost its place."""

from typing import Any

import pytest

from resources.job.errors import Unschedulable
from resources.launcher.kubernetes.attempt_objects import QueuePosition, why_not_admitted


def workload(*conditions: dict[str, Any]) -> dict[str, Any]:
    """Return a Workload as Kueue 0.15 stores it."""
    return {"metadata": {"name": "job-train-abc-1-x"}, "status": {"conditions": list(conditions)}}


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def unreserved(message: str, reason: str = "Pending") -> dict[str, Any]:
    return condition("QuotaReserved", "False", reason, message)


FULL = (
    "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor all, 1 more needed"
)
TOO_LARGE = (
    "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor all, request > maximum capacity "
    "(9 > 2)"
)


def test_behind_others_a_training_waits_for_ever_and_says_for_what() -> None:
    place = QueuePosition.of([workload(unreserved(FULL))])
    assert place.waits_for == FULL
    assert why_not_admitted(place, "team-a") is None
    assert why_not_admitted(QueuePosition.of([workload()]), "team-a") is None, "it has only just come"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        pytest.param(
            QueuePosition.of([]), "install Kueue 0.15 or newer.*leave out resources.queue, team-a", id="none"
        ),
        pytest.param(
            QueuePosition.of([workload(unreserved("LocalQueue team-a doesn't exist", "Inadmissible"))]),
            "queue team-a never admits the training: LocalQueue team-a doesn't exist. Correct resources.queue",
            id="missing",
        ),
        pytest.param(
            QueuePosition.of([workload(unreserved(TOO_LARGE))]),
            r"maximum capacity \(9 > 2\). Correct resources.queue, request less",
            id="too large",
        ),
    ],
)
def test_what_no_wait_will_start_is_refused_with_what_helps(place: QueuePosition, said: str) -> None:
    with pytest.raises(Unschedulable, match=said):
        raise why_not_admitted(place, "team-a") or AssertionError


def test_who_was_let_through_waits_for_nothing() -> None:
    place = QueuePosition.of(
        [workload(condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in q"))]
    )
    assert (place.waits_for, place.given_up_for) == ("", "")


def test_who_lost_its_place_is_told_why() -> None:
    why = "Preempted to accommodate a workload (UID: 1, JobUID: 2) due to prioritization in the ClusterQueue"
    place = QueuePosition.of([workload(condition("Evicted", "True", "Preempted", why))])
    assert place.given_up_for.startswith("Preempted to accommodate")
