"""Pods as the API describes them, in small: for several in one attempt. `recorded` has real ones."""

from typing import Any

CREATED = "2026-11-21T12:00:00Z"


def pod(
    index: int = 0,
    *,
    phase: str = "Running",
    state: dict[str, Any] | None = None,
    node: str = "node1",
    conditions: tuple[dict[str, Any], ...] = (),
    deleted: str | None = None,
) -> dict[str, Any]:
    """One pod; `state` is its container's."""
    meta: dict[str, Any] = {
        "name": f"train-abc-1-{index}-x",
        "uid": f"uid-{index}",
        "creationTimestamp": CREATED,
        "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
    }
    if deleted is not None:
        meta |= {"deletionTimestamp": deleted, "deletionGracePeriodSeconds": 60}
    status: dict[str, Any] = {"phase": phase, "conditions": list(conditions)}
    if state is not None:
        status["containerStatuses"] = [{"name": "trainer", "state": state}]
    spec: dict[str, Any] = {"containers": [{"name": "trainer", "image": "trainer:1"}]}
    return {"metadata": meta, "spec": spec | ({"nodeName": node} if node else {}), "status": status}


def ended(index: int, code: int, reason: str = "Error", message: str = "", **facts: Any) -> dict[str, Any]:
    """A pod whose container ended."""
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return pod(index, phase="Failed" if code else "Succeeded", state=state, **facts)


def waiting(reason: str, message: str) -> dict[str, Any]:
    """A scheduled pod whose container is not there yet."""
    return pod(phase="Pending", state={"waiting": {"reason": reason, "message": message}})


def unscheduled(message: str) -> dict[str, Any]:
    """A pod without a node."""
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(phase="Pending", node="", conditions=(said,))


def failed_job(reason: str = "BackoffLimitExceeded", at: str = "2026-11-21T12:01:00Z") -> dict[str, Any]:
    """A Job of two pods that failed."""
    return {
        "spec": {"completions": 2},
        "status": {
            "conditions": [
                {
                    "type": "Failed",
                    "status": "True",
                    "reason": reason,
                    "message": "…",
                    "lastTransitionTime": at,
                }
            ]
        },
    }
