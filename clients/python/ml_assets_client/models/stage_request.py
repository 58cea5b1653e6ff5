from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

from ..models.stage_request_stage import StageRequestStage

T = TypeVar("T", bound="StageRequest")


@_attrs_define
class StageRequest:
    """Decision about a version. `approved` and `rejected` are reviews of its newest evaluation, and leave its stage.
    `production` promotes: by the rules in force, the version may become the canary first. `archived` is final.

        Attributes:
            reason (str): Recorded with your name in an append-only log.
            stage (StageRequestStage):
    """

    reason: str
    stage: StageRequestStage

    def to_dict(self) -> dict[str, Any]:
        reason = self.reason

        stage = self.stage.value

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "reason": reason,
                "stage": stage,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        reason = d.pop("reason")

        stage = StageRequestStage(d.pop("stage"))

        stage_request = cls(
            reason=reason,
            stage=stage,
        )

        return stage_request
