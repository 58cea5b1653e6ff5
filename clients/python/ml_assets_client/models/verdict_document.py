from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.verdict_document_findings_item import VerdictDocumentFindingsItem


T = TypeVar("T", bound="VerdictDocument")


@_attrs_define
class VerdictDocument:
    """Newest verdict on a partition.

    Attributes:
        accepted_by (None | str):
        at (datetime.datetime):
        content_digest (str):
        findings (list[VerdictDocumentFindingsItem]):
        number (int):
        partition (str):
        rows (int):
        run_id (str):
        status (str): `passed`, `warned`, `rejected` or `accepted`.
        table (str):
    """

    accepted_by: str | None
    at: datetime.datetime
    content_digest: str
    findings: list[VerdictDocumentFindingsItem]
    number: int
    partition: str
    rows: int
    run_id: str
    status: str
    table: str

    def to_dict(self) -> dict[str, Any]:
        accepted_by: str | None
        accepted_by = self.accepted_by

        at = self.at.isoformat()

        content_digest = self.content_digest

        findings = []
        for findings_item_data in self.findings:
            findings_item = findings_item_data.to_dict()
            findings.append(findings_item)

        number = self.number

        partition = self.partition

        rows = self.rows

        run_id = self.run_id

        status = self.status

        table = self.table

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "accepted_by": accepted_by,
                "at": at,
                "content_digest": content_digest,
                "findings": findings,
                "number": number,
                "partition": partition,
                "rows": rows,
                "run_id": run_id,
                "status": status,
                "table": table,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.verdict_document_findings_item import VerdictDocumentFindingsItem

        d = dict(src_dict)

        def _parse_accepted_by(data: object) -> str | None:
            if data is None:
                return data
            return cast(None | str, data)

        accepted_by = _parse_accepted_by(d.pop("accepted_by"))

        at = datetime.datetime.fromisoformat(d.pop("at"))

        content_digest = d.pop("content_digest")

        findings = []
        _findings = d.pop("findings")
        for findings_item_data in _findings:
            findings_item = VerdictDocumentFindingsItem.from_dict(findings_item_data)

            findings.append(findings_item)

        number = d.pop("number")

        partition = d.pop("partition")

        rows = d.pop("rows")

        run_id = d.pop("run_id")

        status = d.pop("status")

        table = d.pop("table")

        verdict_document = cls(
            accepted_by=accepted_by,
            at=at,
            content_digest=content_digest,
            findings=findings,
            number=number,
            partition=partition,
            rows=rows,
            run_id=run_id,
            status=status,
            table=table,
        )

        return verdict_document
