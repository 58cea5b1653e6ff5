from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

T = TypeVar("T", bound="ScheduledShareDocument")


@_attrs_define
class ScheduledShareDocument:
    """Scheduled trainings of a pipeline that ended, each with its repetitions, and those of them that completed.

    Attributes:
        completed (int):
        ended (int):
        model (str):
    """

    completed: int
    ended: int
    model: str

    def to_dict(self) -> dict[str, Any]:
        completed = self.completed

        ended = self.ended

        model = self.model

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "completed": completed,
                "ended": ended,
                "model": model,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        completed = d.pop("completed")

        ended = d.pop("ended")

        model = d.pop("model")

        scheduled_share_document = cls(
            completed=completed,
            ended=ended,
            model=model,
        )

        return scheduled_share_document
