from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

T = TypeVar("T", bound="GoodputDocument")


@_attrs_define
class GoodputDocument:
    """Wall time of a training in seconds, by its parts.

    Attributes:
        checkpoint (float):
        compute (float):
        data_wait (float):
        lost_work (float):
        queue (float):
        recovery (float):
        start_up (float):
    """

    checkpoint: float
    compute: float
    data_wait: float
    lost_work: float
    queue: float
    recovery: float
    start_up: float

    def to_dict(self) -> dict[str, Any]:
        checkpoint = self.checkpoint

        compute = self.compute

        data_wait = self.data_wait

        lost_work = self.lost_work

        queue = self.queue

        recovery = self.recovery

        start_up = self.start_up

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "checkpoint": checkpoint,
                "compute": compute,
                "data_wait": data_wait,
                "lost_work": lost_work,
                "queue": queue,
                "recovery": recovery,
                "start_up": start_up,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        checkpoint = d.pop("checkpoint")

        compute = d.pop("compute")

        data_wait = d.pop("data_wait")

        lost_work = d.pop("lost_work")

        queue = d.pop("queue")

        recovery = d.pop("recovery")

        start_up = d.pop("start_up")

        goodput_document = cls(
            checkpoint=checkpoint,
            compute=compute,
            data_wait=data_wait,
            lost_work=lost_work,
            queue=queue,
            recovery=recovery,
            start_up=start_up,
        )

        return goodput_document
