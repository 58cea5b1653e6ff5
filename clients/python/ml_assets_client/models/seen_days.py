from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

T = TypeVar("T", bound="SeenDays")


@_attrs_define
class SeenDays:
    """First and last day that the model has seen.

    Attributes:
        first (datetime.date):
        last (datetime.date): Last day of any row or label that trained the model, or by which it was chosen.
    """

    first: datetime.date
    last: datetime.date

    def to_dict(self) -> dict[str, Any]:
        first = self.first.isoformat()

        last = self.last.isoformat()

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "first": first,
                "last": last,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        first = datetime.date.fromisoformat(d.pop("first"))

        last = datetime.date.fromisoformat(d.pop("last"))

        seen_days = cls(
            first=first,
            last=last,
        )

        return seen_days
