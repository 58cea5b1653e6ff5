from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

T = TypeVar("T", bound="ProblemDocument")


@_attrs_define
class ProblemDocument:
    """Refusal of a request.

    Attributes:
        code (str): Name of the error, for programs.
        detail (str): What is wrong, and what to do.
        request_id (str): Id of the request in the server's log.
        status (int):
        title (str): Words of the HTTP status.
        type_ (str): `about:blank`: `code` identifies the problem.
        ground (None | str | Unset): Rule that speaks against a decision about a version.
    """

    code: str
    detail: str
    request_id: str
    status: int
    title: str
    type_: str
    ground: str | Unset | None = UNSET

    def to_dict(self) -> dict[str, Any]:
        code = self.code

        detail = self.detail

        request_id = self.request_id

        status = self.status

        title = self.title

        type_ = self.type_

        ground: str | Unset | None
        if isinstance(self.ground, Unset):
            ground = UNSET
        else:
            ground = self.ground

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "code": code,
                "detail": detail,
                "request_id": request_id,
                "status": status,
                "title": title,
                "type": type_,
            }
        )
        if ground is not UNSET:
            field_dict["ground"] = ground

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        code = d.pop("code")

        detail = d.pop("detail")

        request_id = d.pop("request_id")

        status = d.pop("status")

        title = d.pop("title")

        type_ = d.pop("type")

        def _parse_ground(data: object) -> str | Unset | None:
            if data is None:
                return data
            if isinstance(data, Unset):
                return data
            return cast(None | str | Unset, data)

        ground = _parse_ground(d.pop("ground", UNSET))

        problem_document = cls(
            code=code,
            detail=detail,
            request_id=request_id,
            status=status,
            title=title,
            type_=type_,
            ground=ground,
        )

        return problem_document
