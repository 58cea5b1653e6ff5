from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.spending_document import SpendingDocument


T = TypeVar("T", bound="CostRowDocument")


@_attrs_define
class CostRowDocument:
    """Costs of one group.

    Attributes:
        name (str):
        spent (SpendingDocument): Hours that were reserved, and their price.
        trainings (int):
    """

    name: str
    spent: SpendingDocument
    trainings: int

    def to_dict(self) -> dict[str, Any]:
        name = self.name

        spent = self.spent.to_dict()

        trainings = self.trainings

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "name": name,
                "spent": spent,
                "trainings": trainings,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.spending_document import SpendingDocument

        d = dict(src_dict)
        name = d.pop("name")

        spent = SpendingDocument.from_dict(d.pop("spent"))

        trainings = d.pop("trainings")

        cost_row_document = cls(
            name=name,
            spent=spent,
            trainings=trainings,
        )

        return cost_row_document
