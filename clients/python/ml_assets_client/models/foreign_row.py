from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.foreign_row_inputs import ForeignRowInputs


T = TypeVar("T", bound="ForeignRow")


@_attrs_define
class ForeignRow:
    """Golden row: inputs, and the answer of the model where it was trained.

    Attributes:
        expected (float | list[float]): Prediction; for classes, a probability for each, in the order of `classes`.
        inputs (ForeignRowInputs): Column to value; null where unknown.
    """

    expected: float | list[float]
    inputs: ForeignRowInputs

    def to_dict(self) -> dict[str, Any]:
        expected: float | list[float]
        if isinstance(self.expected, list):
            expected = self.expected

        else:
            expected = self.expected

        inputs = self.inputs.to_dict()

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "expected": expected,
                "inputs": inputs,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.foreign_row_inputs import ForeignRowInputs

        d = dict(src_dict)

        def _parse_expected(data: object) -> float | list[float]:
            try:
                if not isinstance(data, list):
                    raise TypeError()
                expected_type_1 = cast(list[float], data)

                return expected_type_1
            except (TypeError, ValueError, AttributeError, KeyError):
                pass
            return cast(float | list[float], data)

        expected = _parse_expected(d.pop("expected"))

        inputs = ForeignRowInputs.from_dict(d.pop("inputs"))

        foreign_row = cls(
            expected=expected,
            inputs=inputs,
        )

        return foreign_row
