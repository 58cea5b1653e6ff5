from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.goodput_document import GoodputDocument
    from ..models.spending_document import SpendingDocument


T = TypeVar("T", bound="TrainingCostDocument")


@_attrs_define
class TrainingCostDocument:
    """Costs of one training over all its launches.

    Attributes:
        currency (str):
        fingerprint (str):
        goodput (GoodputDocument): Wall time of a training in seconds, by its parts.
        model (str):
        partition (str):
        spent (SpendingDocument): Hours that were reserved, and their price.
        states (list[str]): State of each attempt, oldest first.
    """

    currency: str
    fingerprint: str
    goodput: GoodputDocument
    model: str
    partition: str
    spent: SpendingDocument
    states: list[str]

    def to_dict(self) -> dict[str, Any]:
        currency = self.currency

        fingerprint = self.fingerprint

        goodput = self.goodput.to_dict()

        model = self.model

        partition = self.partition

        spent = self.spent.to_dict()

        states = self.states

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "currency": currency,
                "fingerprint": fingerprint,
                "goodput": goodput,
                "model": model,
                "partition": partition,
                "spent": spent,
                "states": states,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.goodput_document import GoodputDocument
        from ..models.spending_document import SpendingDocument

        d = dict(src_dict)
        currency = d.pop("currency")

        fingerprint = d.pop("fingerprint")

        goodput = GoodputDocument.from_dict(d.pop("goodput"))

        model = d.pop("model")

        partition = d.pop("partition")

        spent = SpendingDocument.from_dict(d.pop("spent"))

        states = cast(list[str], d.pop("states"))

        training_cost_document = cls(
            currency=currency,
            fingerprint=fingerprint,
            goodput=goodput,
            model=model,
            partition=partition,
            spent=spent,
            states=states,
        )

        return training_cost_document
