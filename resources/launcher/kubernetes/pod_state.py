"""State of a pod, read from its document: its node, its containers, the reason for its removal.

Webhooks of a cluster may add containers to a pod, such as a mesh's proxy or a fetcher of secrets, also before the
trainer. So every container is looked up by name, never by its place in a list. Not here: the meaning of a state for the
training (classify).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from resources.launcher.kubernetes.attempt_objects import CONTAINER, INDEX
from resources.launcher.kubernetes.cluster import Document

_SIGNALS = 65
"""Linux has the signals 1 to 64. 255 is an exit code, not 128 + 127."""


@dataclass(frozen=True, kw_only=True)
class Container:
    """State of one container of a pod."""

    name: str
    role: Literal["trainer", "init container", "sidecar"]
    image: str
    is_first: bool
    """True if the trainer starts only after this container has ended well, or has started as a native sidecar."""
    is_running: bool
    exit_code: int | None
    """Exit code of its last end; None if it never ended."""
    reason: str
    """Reason for its end: `OOMKilled`, `StartError`, `Error`, …"""
    message: str
    """Last lines of its log, or the container runtime's words."""
    waiting: str
    """Reason for its waiting: `ErrImagePull`, `ContainerCreating`, …"""
    waiting_message: str
    restarts: int
    began: datetime | None
    ended: datetime | None

    @property
    def has_started(self) -> bool:
        """True if it runs or ran, so that there is a log."""
        return self.is_running or self.exit_code is not None

    @property
    def has_failed(self) -> bool:
        """True if it ended with an exit code other than 0."""
        return self.exit_code not in (None, 0)

    @property
    def how_it_ended(self) -> str:
        """Exit code or signal, with the last line of its log, for messages."""
        code = self.exit_code or 0
        known = "" if self.reason in ("", "Error", "Completed") else f" ({self.reason})"
        how = f"signal {code - 128}{known}" if 128 < code < 128 + _SIGNALS else f"exit code {code}{known}"
        last = self.message.strip().splitlines()[-1:]
        return ": ".join([how, *last])


@dataclass(frozen=True, kw_only=True)
class Pod:
    """Relevant part of a pod's document."""

    name: str
    uid: str
    index: int
    node: str
    created: datetime
    placed: datetime | None
    """Time at which it was placed on a node; None if the API does not say."""
    is_scheduled: bool
    unscheduled_why: str
    is_gated: bool
    """True if a queue holds it back: then waiting is normal."""
    has_ended: bool
    """True if its trainer or the whole pod ended. Sidecars may run longer than the trainer."""
    reason: str
    """Reason for the failure of the pod as a whole: `Evicted`, `DeadlineExceeded`, `UnexpectedAdmissionError`, … Else
    empty.
    """
    message: str
    disrupted: str
    """Reason why the cluster or a person removed it: eviction, preemption, a lost node, a deletion. Else empty."""
    deleted: datetime | None
    """Time at which its deletion was requested."""
    trainer: Container
    others: tuple[Container, ...]
    """Containers that the launcher did not write."""
    title: str = ""
    """Name for messages; empty for a pod of a training, which has a number."""

    @classmethod
    def of(cls, document: Document, main: str = CONTAINER, title: str = "") -> "Pod":
        """Read the API's document. `main`: name of the container that is the pod's task, here called its trainer."""
        meta, spec, status = document["metadata"], document["spec"], document.get("status", {})
        conditions = {one["type"]: one for one in status.get("conditions", [])}
        scheduled = conditions.get("PodScheduled", {})
        deleted = None
        if meta.get("deletionTimestamp"):
            grace = timedelta(seconds=meta.get("deletionGracePeriodSeconds") or 0)
            deleted = datetime.fromisoformat(meta["deletionTimestamp"]) - grace
        target = conditions.get("DisruptionTarget", {})
        disrupted = ""
        if target.get("status") == "True":
            disrupted = f"{target.get('reason', 'disrupted')}: {target.get('message', '')}".rstrip(": ")
        containers = list(_containers(spec, status, main))
        # The pruner also reads foreign pods with our labels. They have no trainer: use an empty state.
        trainer = next(
            (one for one in containers if one.role == "trainer"),
            _container({"name": CONTAINER}, {}, "trainer", is_first=False),
        )
        return cls(
            name=meta["name"],
            uid=meta["uid"],
            index=int(meta.get("annotations", {}).get(INDEX, 0)),
            node=spec.get("nodeName", ""),
            created=datetime.fromisoformat(meta["creationTimestamp"]),
            placed=datetime.fromisoformat(scheduled["lastTransitionTime"])
            if scheduled.get("status") == "True"
            else None,
            is_scheduled=bool(spec.get("nodeName")),
            unscheduled_why=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
            is_gated=scheduled.get("reason") == "SchedulingGated",
            has_ended=status.get("phase") in ("Succeeded", "Failed") or trainer.exit_code is not None,
            reason=status.get("reason", ""),
            message=status.get("message", "").strip(),
            disrupted=disrupted,
            deleted=deleted,
            trainer=trainer,
            others=tuple(one for one in containers if one.role != "trainer"),
            title=title,
        )

    @property
    def exit_code(self) -> int | None:
        """Exit code of the trainer; None if it did not end, or never started."""
        return self.trainer.exit_code

    @property
    def has_started(self) -> bool:
        """True if its trainer runs or ran, so that there is a log."""
        return self.trainer.has_started

    @property
    def since(self) -> datetime:
        """Time of the last progress of a pod whose trainer has not started: its placement on a node, or the start or
        end of another container. A container that is restarted again and again makes no progress.
        """
        moments = [
            when
            for one in self.others
            if not one.restarts
            for when in (one.began, one.ended)
            if when is not None
        ]
        return max([self.placed or self.created, *moments])

    @property
    def named(self) -> str:
        """Name of the pod for messages: its number or title, and its node."""
        return (self.title or f"pod {self.index}") + (f" on {self.node}" if self.node else "")


def _containers(spec: Document, status: Document, main: str) -> Iterator[Container]:
    told = {
        one["name"]: one
        for one in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    }
    for one in spec.get("initContainers", []):
        # A native sidecar is an init container that Kubernetes restarts for as long as the pod lives.
        role = "sidecar" if one.get("restartPolicy") == "Always" else "init container"
        yield _container(one, told.get(one["name"], {}), role, is_first=True)
    for one in spec["containers"]:
        role = "trainer" if one["name"] == main else "sidecar"
        yield _container(one, told.get(one["name"], {}), role, is_first=False)


def _container(
    spec: Document, status: Document, role: Literal["trainer", "init container", "sidecar"], *, is_first: bool
) -> Container:
    state: Document = status.get("state", {})
    waits: Document = state.get("waiting", {})
    ended: Document = state.get("terminated") or status.get("lastState", {}).get("terminated", {})
    began = state.get("running", ended).get("startedAt")
    return Container(
        name=spec["name"],
        role=role,
        image=spec.get("image", ""),
        is_first=is_first,
        is_running="running" in state,
        exit_code=ended.get("exitCode"),
        reason=ended.get("reason", ""),
        message=ended.get("message", ""),
        waiting=waits.get("reason", ""),
        waiting_message=waits.get("message", ""),
        restarts=status.get("restartCount", 0),
        began=datetime.fromisoformat(began) if began else None,
        ended=datetime.fromisoformat(ended["finishedAt"]) if ended.get("finishedAt") else None,
    )
