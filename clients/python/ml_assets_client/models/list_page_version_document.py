from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.version_document import VersionDocument


T = TypeVar("T", bound="ListPageVersionDocument")


@_attrs_define
class ListPageVersionDocument:
    """
    Attributes:
        items (list[VersionDocument]):
        next_ (None | str): Cursor of the next page; null at the end.
    """

    items: list[VersionDocument]
    next_: str | None

    def to_dict(self) -> dict[str, Any]:
        items = []
        for items_item_data in self.items:
            items_item = items_item_data.to_dict()
            items.append(items_item)

        next_: str | None
        next_ = self.next_

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "items": items,
                "next": next_,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.version_document import VersionDocument

        d = dict(src_dict)
        items = []
        _items = d.pop("items")
        for items_item_data in _items:
            items_item = VersionDocument.from_dict(items_item_data)

            items.append(items_item)

        def _parse_next_(data: object) -> str | None:
            if data is None:
                return data
            return cast(None | str, data)

        next_ = _parse_next_(d.pop("next"))

        list_page_version_document = cls(
            items=items,
            next_=next_,
        )

        return list_page_version_document
