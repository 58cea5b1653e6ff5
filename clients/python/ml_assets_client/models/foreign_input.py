from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="ForeignInput")


@_attrs_define
class ForeignInput:
    """Input of the graph, `[rows, 1]`: a column of the feature table.

    Attributes:
        dtype (str): Type of the column in the feature table, such as `float32` or `string`.
        name (str):
        vocabulary (list[str] | Unset): For a categorical column: the texts that the model knows. The graph gets the
            empty text for null and for any other text. Empty for a number.
    """

    dtype: str
    name: str
    vocabulary: list[str] | Unset = UNSET

    def to_dict(self) -> dict[str, Any]:
        dtype = self.dtype

        name = self.name

        vocabulary: list[str] | Unset = UNSET
        if not isinstance(self.vocabulary, Unset):
            vocabulary = self.vocabulary

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "dtype": dtype,
                "name": name,
            }
        )
        if vocabulary is not UNSET:
            field_dict["vocabulary"] = vocabulary

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        dtype = d.pop("dtype")

        name = d.pop("name")

        vocabulary = cast(list[str], d.pop("vocabulary", UNSET))

        foreign_input = cls(
            dtype=dtype,
            name=name,
            vocabulary=vocabulary,
        )

        return foreign_input
