"""Classification of the states that pods can be in: the cause, the type, and words that help."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ml_assets_tests.resources.launcher.pod_documents import (
    CREATED,
    ended,
    failed_job,
    pod,
    unscheduled,
)
from resources.job.errors import (
    BadConfiguration,
    DeadlineExceeded,
    Diverged,
    InputChanged,
    OutOfMemory,
    TrainingFailed,
    Unschedulable,
)
from resources.launcher.kubernetes.classify import AttemptEnd, StartTimeouts, end_of, fitting, why_not_started
from resources.launcher.kubernetes.pod_state import Pod
from resources.launcher.resource_profile import ResourceProfile

PATIENCE = StartTimeouts(start=120, pull=1800)
PROFILE = ResourceProfile(nodes=2, cpu="4", memory="64Gi", gpus=1, deadline_minutes=5)
DISRUPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "EvictionByEvictionAPI",
    "message": "Eviction API: evicting",
}


def ended_as(
    *documents: dict[str, Any], gone: tuple[dict[str, Any], ...] = (), job: Any = None
) -> AttemptEnd:
    pods, vanished = map(Pod.of, documents), map(Pod.of, gone)
    return end_of(job or failed_job(), list(pods), list(vanished), PROFILE, "the loss was nan")


def hope(document: dict[str, Any], waited: float) -> TrainingFailed | None:
    now = datetime.fromisoformat(CREATED) + timedelta(seconds=waited)
    return why_not_started([Pod.of(document)], PROFILE, now, PATIENCE, lambda _: ())


@pytest.mark.parametrize(("code", "error"), [(64, BadConfiguration), (65, Diverged), (66, InputChanged)])
def test_a_final_exit_code_outranks_what_it_did_to_the_other_pods(
    code: int, error: type[TrainingFailed]
) -> None:
    end = ended_as(ended(0, 1), ended(1, code), ended(2, 137))
    assert isinstance(end.error, error)
    assert "the loss was nan" in str(end.error)
    assert error.final


def test_a_pod_out_of_memory_is_final_and_names_the_limit() -> None:
    end = ended_as(ended(0, 1), ended(1, 137, "OOMKilled", node="node2"))
    assert isinstance(end.error, OutOfMemory)
    assert re.search(r"^pod 1 .*node2.*resources\.memory 64Gi", str(end.error))


def test_a_deadline_is_final_and_says_how_to_go_on() -> None:
    end = ended_as(ended(0, 75), job=failed_job("DeadlineExceeded"))
    assert isinstance(end.error, DeadlineExceeded)
    assert "deadline_minutes, 5" in str(end.error)


@pytest.mark.parametrize(
    ("documents", "gone", "said"),
    [
        pytest.param(
            (ended(0, 75), ended(1, 75)), (), "the pods saved a checkpoint and ended on request", id="saved"
        ),
        pytest.param(
            (ended(0, 1), ended(1, 143, conditions=(DISRUPTED,))), (), "EvictionByEvictionAPI", id="evicted"
        ),
        pytest.param((ended(0, 1),), (pod(1),), "pod 1 on node1 vanished", id="vanished"),
        pytest.param(
            (ended(0, 1), ended(1, 137, deleted="2026-11-21T12:01:59Z")), (), "was deleted", id="deleted"
        ),
    ],
)
def test_what_is_taken_away_from_outside_costs_no_budget(documents: Any, gone: Any, said: str) -> None:
    end = ended_as(*documents, gone=gone)
    assert end.kind == "preempted"
    assert said in end.said


def test_pods_the_job_removes_because_one_failed_are_not_the_cause() -> None:
    end = ended_as(ended(0, 3, message="a\nlast words"), ended(1, 143, deleted="2026-11-21T12:02:00Z"))
    assert end.kind == "failed"
    assert end.error is None
    assert re.match("pod 0 .*node1.*code 3: last", end.said)


def test_a_complete_job_is_done() -> None:
    job = {"spec": {"completions": 2}, "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    assert ended_as(ended(0, 0), ended(1, 0), job=job).kind == "done"


def test_a_pod_without_a_node_gets_its_time_and_then_the_schedulers_words() -> None:
    scheduler = "0/2 nodes are available: 2 Insufficient memory."
    document = unscheduled(scheduler)
    assert hope(document, 119) is None
    error = hope(document, 121)
    assert isinstance(error, Unschedulable)
    assert re.search("121 s.* 4 CPU, 64Gi.*1 GPU", str(error))
    assert scheduler in str(error)


def test_an_elastic_training_fits_where_its_least_pods_have_a_node() -> None:
    elastic = PROFILE.changed({"nodes": {"min": 2, "max": 4}})
    placed, waits = Pod.of(pod()), Pod.of(unscheduled("0/2 nodes are available"))
    gate = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    held = Pod.of(pod(phase="Pending", node="", conditions=(gate,)))
    assert fitting([placed, placed, placed, waits], 4, elastic) == 3
    assert fitting([placed, placed], 4, elastic) == 2  # a quota may not let the others be made
    assert fitting([placed, waits, waits, waits], 4, elastic) is None
    assert fitting([placed] * 4, 4, elastic) is None
    assert fitting([placed, placed, placed, held], 4, elastic) is None
    assert fitting([placed, waits], 2, PROFILE) is None
    error = why_not_started([waits], elastic, waits.created + timedelta(seconds=121), PATIENCE, lambda _: ())
    assert re.search("pod 0.*least 2.*no node", str(error))


def test_a_pod_that_a_queue_holds_back_may_wait_for_ever() -> None:
    gate = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    assert hope(pod(phase="Pending", node="", conditions=(gate,)), 9999) is None


def test_the_moment_a_deletion_was_asked_for_is_before_its_grace() -> None:
    read = Pod.of(pod(deleted="2026-11-21T12:02:00Z"))
    assert read.deleted == datetime(2026, 11, 21, 12, 1, tzinfo=UTC)


def test_a_pod_that_only_carries_our_labels_is_one_that_never_started() -> None:
    """The pruner reads every Job with the label."""
    document = pod(state={"running": {}})
    document["spec"]["containers"][0]["name"] = "web"
    document["status"]["containerStatuses"][0]["name"] = "web"
    read = Pod.of(document)
    assert not read.has_started
    assert not read.has_ended
    assert [one.name for one in read.others] == ["web"]
