from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

T = TypeVar("T", bound="RuleDocument")


@_attrs_define
class RuleDocument:
    """One gate with its outcome.

    Attributes:
        asks (str):
        found (str):
        result (str):
        rule (str):
        slice_ (str):
        would_pass (str):
    """

    asks: str
    found: str
    result: str
    rule: str
    slice_: str
    would_pass: str

    def to_dict(self) -> dict[str, Any]:
        asks = self.asks

        found = self.found

        result = self.result

        rule = self.rule

        slice_ = self.slice_

        would_pass = self.would_pass

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "asks": asks,
                "found": found,
                "result": result,
                "rule": rule,
                "slice": slice_,
                "would_pass": would_pass,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        asks = d.pop("asks")

        found = d.pop("found")

        result = d.pop("result")

        rule = d.pop("rule")

        slice_ = d.pop("slice")

        would_pass = d.pop("would_pass")

        rule_document = cls(
            asks=asks,
            found=found,
            result=result,
            rule=rule,
            slice_=slice_,
            would_pass=would_pass,
        )

        return rule_document
