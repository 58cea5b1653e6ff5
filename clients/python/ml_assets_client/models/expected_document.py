from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.estimate_document import EstimateDocument


T = TypeVar("T", bound="ExpectedDocument")


@_attrs_define
class ExpectedDocument:
    """Expectation of a training, from trainings of its pipeline that completed.

    Attributes:
        currency (str):
        fault (str): Reason for which the history could not be read; empty if it could.
        hours (EstimateDocument | None): Hours in which it holds places.
        is_alike (bool): True if they had the same model function and as many workers; else they are all of the
            pipeline.
        money (EstimateDocument | None): By the prices of now; null without prices.
        start_hours (EstimateDocument | None): Hours from the launch to the first place; null without a queue.
        trainings (int): Trainings that count; 0: no history.
    """

    currency: str
    fault: str
    hours: EstimateDocument | None
    is_alike: bool
    money: EstimateDocument | None
    start_hours: EstimateDocument | None
    trainings: int

    def to_dict(self) -> dict[str, Any]:
        from ..models.estimate_document import EstimateDocument

        currency = self.currency

        fault = self.fault

        hours: dict[str, Any] | None
        if isinstance(self.hours, EstimateDocument):
            hours = self.hours.to_dict()
        else:
            hours = self.hours

        is_alike = self.is_alike

        money: dict[str, Any] | None
        if isinstance(self.money, EstimateDocument):
            money = self.money.to_dict()
        else:
            money = self.money

        start_hours: dict[str, Any] | None
        if isinstance(self.start_hours, EstimateDocument):
            start_hours = self.start_hours.to_dict()
        else:
            start_hours = self.start_hours

        trainings = self.trainings

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "currency": currency,
                "fault": fault,
                "hours": hours,
                "is_alike": is_alike,
                "money": money,
                "start_hours": start_hours,
                "trainings": trainings,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.estimate_document import EstimateDocument

        d = dict(src_dict)
        currency = d.pop("currency")

        fault = d.pop("fault")

        def _parse_hours(data: object) -> EstimateDocument | None:
            if data is None:
                return data
            try:
                if not isinstance(data, dict):
                    raise TypeError()
                hours_type_0 = EstimateDocument.from_dict(data)

                return hours_type_0
            except (TypeError, ValueError, AttributeError, KeyError):
                pass
            return cast(EstimateDocument | None, data)

        hours = _parse_hours(d.pop("hours"))

        is_alike = d.pop("is_alike")

        def _parse_money(data: object) -> EstimateDocument | None:
            if data is None:
                return data
            try:
                if not isinstance(data, dict):
                    raise TypeError()
                money_type_0 = EstimateDocument.from_dict(data)

                return money_type_0
            except (TypeError, ValueError, AttributeError, KeyError):
                pass
            return cast(EstimateDocument | None, data)

        money = _parse_money(d.pop("money"))

        def _parse_start_hours(data: object) -> EstimateDocument | None:
            if data is None:
                return data
            try:
                if not isinstance(data, dict):
                    raise TypeError()
                start_hours_type_0 = EstimateDocument.from_dict(data)

                return start_hours_type_0
            except (TypeError, ValueError, AttributeError, KeyError):
                pass
            return cast(EstimateDocument | None, data)

        start_hours = _parse_start_hours(d.pop("start_hours"))

        trainings = d.pop("trainings")

        expected_document = cls(
            currency=currency,
            fault=fault,
            hours=hours,
            is_alike=is_alike,
            money=money,
            start_hours=start_hours,
            trainings=trainings,
        )

        return expected_document
