from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

T = TypeVar("T", bound="CheckpointDocument")


@_attrs_define
class CheckpointDocument:
    """Checkpoint of a training.

    Attributes:
        at (datetime.datetime):
        bytes_ (int):
        epoch (int | None):
        kept (list[str]): Reasons for which it was not deleted: `newest`, `best`, `resumed`.
        loss (float | None): Validation loss of the newest epoch at that step.
        step (int):
    """

    at: datetime.datetime
    bytes_: int
    epoch: int | None
    kept: list[str]
    loss: float | None
    step: int

    def to_dict(self) -> dict[str, Any]:
        at = self.at.isoformat()

        bytes_ = self.bytes_

        epoch: int | None
        epoch = self.epoch

        kept = self.kept

        loss: float | None
        loss = self.loss

        step = self.step

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "at": at,
                "bytes": bytes_,
                "epoch": epoch,
                "kept": kept,
                "loss": loss,
                "step": step,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        at = datetime.datetime.fromisoformat(d.pop("at"))

        bytes_ = d.pop("bytes")

        def _parse_epoch(data: object) -> int | None:
            if data is None:
                return data
            return cast(int | None, data)

        epoch = _parse_epoch(d.pop("epoch"))

        kept = cast(list[str], d.pop("kept"))

        def _parse_loss(data: object) -> float | None:
            if data is None:
                return data
            return cast(float | None, data)

        loss = _parse_loss(d.pop("loss"))

        step = d.pop("step")

        checkpoint_document = cls(
            at=at,
            bytes_=bytes_,
            epoch=epoch,
            kept=kept,
            loss=loss,
            step=step,
        )

        return checkpoint_document
