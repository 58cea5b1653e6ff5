from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

T = TypeVar("T", bound="StageDocument")


@_attrs_define
class StageDocument:
    """Stage of a version after a decision.

    Attributes:
        at (datetime.datetime):
        by (str):
        changed (bool): False if an earlier decision had the same result.
        model (str):
        notes (list[str]): Changes that break clients, and metrics of a canary that have no evidence.
        reason (str):
        stage (str): `production`, `canary`, `staging` or `archived`.
        version (int):
    """

    at: datetime.datetime
    by: str
    changed: bool
    model: str
    notes: list[str]
    reason: str
    stage: str
    version: int

    def to_dict(self) -> dict[str, Any]:
        at = self.at.isoformat()

        by = self.by

        changed = self.changed

        model = self.model

        notes = self.notes

        reason = self.reason

        stage = self.stage

        version = self.version

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "at": at,
                "by": by,
                "changed": changed,
                "model": model,
                "notes": notes,
                "reason": reason,
                "stage": stage,
                "version": version,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        at = datetime.datetime.fromisoformat(d.pop("at"))

        by = d.pop("by")

        changed = d.pop("changed")

        model = d.pop("model")

        notes = cast(list[str], d.pop("notes"))

        reason = d.pop("reason")

        stage = d.pop("stage")

        version = d.pop("version")

        stage_document = cls(
            at=at,
            by=by,
            changed=changed,
            model=model,
            notes=notes,
            reason=reason,
            stage=stage,
            version=version,
        )

        return stage_document
