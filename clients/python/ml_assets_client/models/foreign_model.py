from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.foreign_input import ForeignInput
    from ..models.foreign_row import ForeignRow
    from ..models.seen_days import SeenDays


T = TypeVar("T", bound="ForeignModel")


@_attrs_define
class ForeignModel:
    """Model that was trained elsewhere, for a declared pipeline, and the partition whose holdout measures it.

    Attributes:
        golden (list[ForeignRow]):
        inputs (list[ForeignInput]):
        model (str):
        onnx (str): The ONNX file in base64: one input `[rows, 1]` for each of `inputs`, float or double for numbers
            (NaN where unknown) and string for categories; one output, float or double, `[rows]`, `[rows, 1]` or `[rows,
            classes]`. At most 6,291,456 bytes, ONNX's own operators, no external data.
        origin (str): What trained it, where: for people.
        partition (str):
        trained_on (SeenDays): First and last day that the model has seen.
        classes (list[str] | Unset): Classes of the label, in the order of the graph's output.
    """

    golden: list[ForeignRow]
    inputs: list[ForeignInput]
    model: str
    onnx: str
    origin: str
    partition: str
    trained_on: SeenDays
    classes: list[str] | Unset = UNSET

    def to_dict(self) -> dict[str, Any]:
        golden = []
        for golden_item_data in self.golden:
            golden_item = golden_item_data.to_dict()
            golden.append(golden_item)

        inputs = []
        for inputs_item_data in self.inputs:
            inputs_item = inputs_item_data.to_dict()
            inputs.append(inputs_item)

        model = self.model

        onnx = self.onnx

        origin = self.origin

        partition = self.partition

        trained_on = self.trained_on.to_dict()

        classes: list[str] | Unset = UNSET
        if not isinstance(self.classes, Unset):
            classes = self.classes

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "golden": golden,
                "inputs": inputs,
                "model": model,
                "onnx": onnx,
                "origin": origin,
                "partition": partition,
                "trained_on": trained_on,
            }
        )
        if classes is not UNSET:
            field_dict["classes"] = classes

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.foreign_input import ForeignInput
        from ..models.foreign_row import ForeignRow
        from ..models.seen_days import SeenDays

        d = dict(src_dict)
        golden = []
        _golden = d.pop("golden")
        for golden_item_data in _golden:
            golden_item = ForeignRow.from_dict(golden_item_data)

            golden.append(golden_item)

        inputs = []
        _inputs = d.pop("inputs")
        for inputs_item_data in _inputs:
            inputs_item = ForeignInput.from_dict(inputs_item_data)

            inputs.append(inputs_item)

        model = d.pop("model")

        onnx = d.pop("onnx")

        origin = d.pop("origin")

        partition = d.pop("partition")

        trained_on = SeenDays.from_dict(d.pop("trained_on"))

        classes = cast(list[str], d.pop("classes", UNSET))

        foreign_model = cls(
            golden=golden,
            inputs=inputs,
            model=model,
            onnx=onnx,
            origin=origin,
            partition=partition,
            trained_on=trained_on,
            classes=classes,
        )

        return foreign_model
