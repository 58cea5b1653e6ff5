from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

T = TypeVar("T", bound="CommitDocument")


@_attrs_define
class CommitDocument:
    """Version of a table: a commit of the lake that changed it.

    Attributes:
        at (datetime.datetime):
        author (str):
        bytes_ (int | None): Bytes of their files.
        code_version (str):
        commit (str):
        message (str):
        partitions (list[str]):
        reason (str):
        rows (int | None): Rows of the partitions that it wrote; null if it names none, such as a merge.
        run_id (str):
        schema_hash (str): Digest of names and types of their columns; empty without any.
    """

    at: datetime.datetime
    author: str
    bytes_: int | None
    code_version: str
    commit: str
    message: str
    partitions: list[str]
    reason: str
    rows: int | None
    run_id: str
    schema_hash: str

    def to_dict(self) -> dict[str, Any]:
        at = self.at.isoformat()

        author = self.author

        bytes_: int | None
        bytes_ = self.bytes_

        code_version = self.code_version

        commit = self.commit

        message = self.message

        partitions = self.partitions

        reason = self.reason

        rows: int | None
        rows = self.rows

        run_id = self.run_id

        schema_hash = self.schema_hash

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "at": at,
                "author": author,
                "bytes": bytes_,
                "code_version": code_version,
                "commit": commit,
                "message": message,
                "partitions": partitions,
                "reason": reason,
                "rows": rows,
                "run_id": run_id,
                "schema_hash": schema_hash,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        at = datetime.datetime.fromisoformat(d.pop("at"))

        author = d.pop("author")

        def _parse_bytes_(data: object) -> int | None:
            if data is None:
                return data
            return cast(int | None, data)

        bytes_ = _parse_bytes_(d.pop("bytes"))

        code_version = d.pop("code_version")

        commit = d.pop("commit")

        message = d.pop("message")

        partitions = cast(list[str], d.pop("partitions"))

        reason = d.pop("reason")

        def _parse_rows(data: object) -> int | None:
            if data is None:
                return data
            return cast(int | None, data)

        rows = _parse_rows(d.pop("rows"))

        run_id = d.pop("run_id")

        schema_hash = d.pop("schema_hash")

        commit_document = cls(
            at=at,
            author=author,
            bytes_=bytes_,
            code_version=code_version,
            commit=commit,
            message=message,
            partitions=partitions,
            reason=reason,
            rows=rows,
            run_id=run_id,
            schema_hash=schema_hash,
        )

        return commit_document
