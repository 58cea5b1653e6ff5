from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

T = TypeVar("T", bound="ModelDocument")


@_attrs_define
class ModelDocument:
    """Model that is declared, or about which the ledger has decisions.

    Attributes:
        canary (None | str):
        declared (bool):
        name (str):
        production (None | str): Version in production.
    """

    canary: str | None
    declared: bool
    name: str
    production: str | None

    def to_dict(self) -> dict[str, Any]:
        canary: str | None
        canary = self.canary

        declared = self.declared

        name = self.name

        production: str | None
        production = self.production

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "canary": canary,
                "declared": declared,
                "name": name,
                "production": production,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)

        def _parse_canary(data: object) -> str | None:
            if data is None:
                return data
            return cast(None | str, data)

        canary = _parse_canary(d.pop("canary"))

        declared = d.pop("declared")

        name = d.pop("name")

        def _parse_production(data: object) -> str | None:
            if data is None:
                return data
            return cast(None | str, data)

        production = _parse_production(d.pop("production"))

        model_document = cls(
            canary=canary,
            declared=declared,
            name=name,
            production=production,
        )

        return model_document
