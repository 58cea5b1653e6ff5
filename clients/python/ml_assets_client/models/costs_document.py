from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

from ..models.costs_document_by import CostsDocumentBy

if TYPE_CHECKING:
    from ..models.cost_row_document import CostRowDocument


T = TypeVar("T", bound="CostsDocument")


@_attrs_define
class CostsDocument:
    """Costs of all trainings; those that failed, diverged, were cancelled or lost cost, too.

    Attributes:
        by (CostsDocumentBy):
        currency (str):
        rows (list[CostRowDocument]):
        since (datetime.date | None):
        total (CostRowDocument): Costs of one group.
        unpriced (list[str]): Kinds of GPU without a price.
    """

    by: CostsDocumentBy
    currency: str
    rows: list[CostRowDocument]
    since: datetime.date | None
    total: CostRowDocument
    unpriced: list[str]

    def to_dict(self) -> dict[str, Any]:
        by = self.by.value

        currency = self.currency

        rows = []
        for rows_item_data in self.rows:
            rows_item = rows_item_data.to_dict()
            rows.append(rows_item)

        since: str | None
        if isinstance(self.since, datetime.date):
            since = self.since.isoformat()
        else:
            since = self.since

        total = self.total.to_dict()

        unpriced = self.unpriced

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "by": by,
                "currency": currency,
                "rows": rows,
                "since": since,
                "total": total,
                "unpriced": unpriced,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.cost_row_document import CostRowDocument

        d = dict(src_dict)
        by = CostsDocumentBy(d.pop("by"))

        currency = d.pop("currency")

        rows = []
        _rows = d.pop("rows")
        for rows_item_data in _rows:
            rows_item = CostRowDocument.from_dict(rows_item_data)

            rows.append(rows_item)

        def _parse_since(data: object) -> datetime.date | None:
            if data is None:
                return data
            try:
                if not isinstance(data, str):
                    raise TypeError()
                since_type_0 = datetime.date.fromisoformat(data)

                return since_type_0
            except (TypeError, ValueError, AttributeError, KeyError):
                pass
            return cast(datetime.date | None, data)

        since = _parse_since(d.pop("since"))

        total = CostRowDocument.from_dict(d.pop("total"))

        unpriced = cast(list[str], d.pop("unpriced"))

        costs_document = cls(
            by=by,
            currency=currency,
            rows=rows,
            since=since,
            total=total,
            unpriced=unpriced,
        )

        return costs_document
