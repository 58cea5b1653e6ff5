from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

T = TypeVar("T", bound="EstimateDocument")


@_attrs_define
class EstimateDocument:
    """Expected value with an interval of 80 %.

    Attributes:
        high (float | None):
        low (float | None): Lower end; null if the history is a single training.
        middle (float): Median of the history.
    """

    high: float | None
    low: float | None
    middle: float

    def to_dict(self) -> dict[str, Any]:
        high: float | None
        high = self.high

        low: float | None
        low = self.low

        middle = self.middle

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "high": high,
                "low": low,
                "middle": middle,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)

        def _parse_high(data: object) -> float | None:
            if data is None:
                return data
            return cast(float | None, data)

        high = _parse_high(d.pop("high"))

        def _parse_low(data: object) -> float | None:
            if data is None:
                return data
            return cast(float | None, data)

        low = _parse_low(d.pop("low"))

        middle = d.pop("middle")

        estimate_document = cls(
            high=high,
            low=low,
            middle=middle,
        )

        return estimate_document
