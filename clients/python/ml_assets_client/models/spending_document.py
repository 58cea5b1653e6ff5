from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

T = TypeVar("T", bound="SpendingDocument")


@_attrs_define
class SpendingDocument:
    """Hours that were reserved, and their price.

    Attributes:
        core_hours (float):
        gib_hours (float):
        gpu_hours (float):
        idle_gpu_hours (float): Part of `gpu_hours` in which nothing was computed that was kept.
        money (float | None): Price of all that has one; null without a table of prices.
        unpriced_gpu_hours (float): GPU hours of kinds without a price, which `money` lacks.
    """

    core_hours: float
    gib_hours: float
    gpu_hours: float
    idle_gpu_hours: float
    money: float | None
    unpriced_gpu_hours: float

    def to_dict(self) -> dict[str, Any]:
        core_hours = self.core_hours

        gib_hours = self.gib_hours

        gpu_hours = self.gpu_hours

        idle_gpu_hours = self.idle_gpu_hours

        money: float | None
        money = self.money

        unpriced_gpu_hours = self.unpriced_gpu_hours

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "core_hours": core_hours,
                "gib_hours": gib_hours,
                "gpu_hours": gpu_hours,
                "idle_gpu_hours": idle_gpu_hours,
                "money": money,
                "unpriced_gpu_hours": unpriced_gpu_hours,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        core_hours = d.pop("core_hours")

        gib_hours = d.pop("gib_hours")

        gpu_hours = d.pop("gpu_hours")

        idle_gpu_hours = d.pop("idle_gpu_hours")

        def _parse_money(data: object) -> float | None:
            if data is None:
                return data
            return cast(float | None, data)

        money = _parse_money(d.pop("money"))

        unpriced_gpu_hours = d.pop("unpriced_gpu_hours")

        spending_document = cls(
            core_hours=core_hours,
            gib_hours=gib_hours,
            gpu_hours=gpu_hours,
            idle_gpu_hours=idle_gpu_hours,
            money=money,
            unpriced_gpu_hours=unpriced_gpu_hours,
        )

        return spending_document
