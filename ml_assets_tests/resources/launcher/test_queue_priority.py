"""Levels by which a queue chooses between trainings of one class, and their way to the queue."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets_tests.resources.launcher.api_server import NAMESPACE, ApiServer
from resources.launcher.kubernetes.cluster import Cluster
from resources.launcher.kubernetes.queue_priority import (
    LEVELS,
    QueuePriority,
    level_of,
    unsaved_level,
)

SECONDS = st.floats(min_value=0, max_value=1e9)
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
SOON = datetime(2026, 11, 30, 11, 0, 1, tzinfo=UTC)
"""A second after the conditions of a Workload changed."""
HOUR = 3600.0
DAY = 24 * HOUR


def workload(**conditions: str) -> dict[str, Any]:
    """Return a Workload, made at ten, whose conditions have had their status since eleven."""
    since = "2026-11-30T11:00:00Z"
    found = [
        {"type": name, "status": state, "lastTransitionTime": since} for name, state in conditions.items()
    ]
    meta = {"name": "w", "creationTimestamp": "2026-11-30T10:00:00Z"}
    return {"metadata": meta, "spec": {"priority": 500}, "status": {"conditions": found}}


@given(one=SECONDS, other=SECONDS)
def test_levels_grow_with_unsaved_work_and_stay_below_the_bound(one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert 0 <= unsaved_level(less) <= unsaved_level(more) < LEVELS < 100


def test_an_attempt_without_a_checkpoint_counts_from_its_admission() -> None:
    admitted = workload(QuotaReserved="True", Evicted="False")
    before = NOON.timestamp() - 2 * HOUR
    assert level_of(admitted, None, NOON, DAY) == unsaved_level(HOUR)
    assert level_of(admitted, before, NOON, DAY) == unsaved_level(HOUR)
    assert level_of(admitted, NOON.timestamp() - 7, NOON, DAY) == unsaved_level(7)
    assert level_of(admitted, None, SOON, DAY) == unsaved_level(600)


def test_a_training_that_waits_rises_at_the_bound_alone() -> None:
    assert level_of(workload(QuotaReserved="False"), None, NOON, 1.01 * HOUR) == 0
    assert level_of(workload(QuotaReserved="False"), None, NOON, HOUR) == LEVELS
    assert level_of(workload(QuotaReserved="True", Evicted="True"), None, NOON, HOUR) == 0
    assert level_of(workload(), None, NOON, HOUR) == 0


def test_a_training_that_waited_for_the_bound_keeps_its_place_for_a_while() -> None:
    """Else the next one that has waited so long evicts it at once."""
    admitted = workload(QuotaReserved="True")
    assert level_of(admitted, SOON.timestamp(), SOON, HOUR) == LEVELS
    assert level_of(admitted, SOON.timestamp(), SOON, 1.01 * HOUR) == 0
    assert level_of(admitted, NOON.timestamp(), NOON, HOUR) == 0


def test_levels_are_added_to_the_priority_of_the_class(api: ApiServer) -> None:
    """Another launcher goes on from what the Workload says."""
    cluster = Cluster(NAMESPACE)
    api.put("workloads", workload())
    for level in (40, 12, 0):
        QueuePriority(cluster, print).raise_to(api.objects["workloads", "w"], level)
        assert api.objects["workloads", "w"]["spec"]["priority"] == 500 + level
    patches = len(api.requests)
    QueuePriority(cluster, print).raise_to(api.objects["workloads", "w"], 0)
    assert len(api.requests) == patches, "nothing changed"


def test_an_annotation_that_somebody_edited_ends_no_training(api: ApiServer) -> None:
    cluster, edited = Cluster(NAMESPACE), workload()
    edited["metadata"]["annotations"] = {"ml-assets/class-priority": "high"}
    api.put("workloads", edited)
    for level in (40, 12):
        QueuePriority(cluster, print).raise_to(api.objects["workloads", "w"], level)
        assert api.objects["workloads", "w"]["spec"]["priority"] == 500 + level


@pytest.mark.parametrize(("status", "lines"), [(403, 1), (500, 0), (404, 0)])
def test_a_queue_that_takes_no_level_ends_no_training(api: ApiServer, status: int, lines: int) -> None:
    api.trouble("PATCH", "/workloads/w", status, times=999)
    said: list[str] = []
    priority = QueuePriority(Cluster(NAMESPACE), said.append)
    priority.raise_to(workload(), 40)
    priority.raise_to(workload(), 41)
    assert len(said) == lines
