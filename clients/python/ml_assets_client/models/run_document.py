from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from attrs import define as _attrs_define

from ..models.run_document_state import RunDocumentState

T = TypeVar("T", bound="RunDocument")


@_attrs_define
class RunDocument:
    """Run.

    Attributes:
        assets (list[str]):
        created_at (datetime.datetime):
        ended_at (datetime.datetime | None):
        id (str):
        launched_by (None | str): Person who launched it through API or proxy.
        model (str): Model that it trains; empty if it trains none.
        page (str): Its page in Dagster.
        partitions (str):
        rejected (str): Reason for which the gates rejected the model, so that it is no version; empty otherwise.
        restored_from (str): `RUN/STEP` of the checkpoint with which its training began; empty for step 0.
        started_at (datetime.datetime | None):
        state (RunDocumentState):
        stopped_by (None | str):
        version (int | None): Version that it registered.
        why (str): Sentence of the step that failed.
    """

    assets: list[str]
    created_at: datetime.datetime
    ended_at: datetime.datetime | None
    id: str
    launched_by: str | None
    model: str
    page: str
    partitions: str
    rejected: str
    restored_from: str
    started_at: datetime.datetime | None
    state: RunDocumentState
    stopped_by: str | None
    version: int | None
    why: str

    def to_dict(self) -> dict[str, Any]:
        assets = self.assets

        created_at = self.created_at.isoformat()

        ended_at: str | None
        if isinstance(self.ended_at, datetime.datetime):
            ended_at = self.ended_at.isoformat()
        else:
            ended_at = self.ended_at

        id = self.id

        launched_by: str | None
        launched_by = self.launched_by

        model = self.model

        page = self.page

        partitions = self.partitions

        rejected = self.rejected

        restored_from = self.restored_from

        started_at: str | None
        if isinstance(self.started_at, datetime.datetime):
            started_at = self.started_at.isoformat()
        else:
            started_at = self.started_at

        state = self.state.value

        stopped_by: str | None
        stopped_by = self.stopped_by

        version: int | None
        version = self.version

        why = self.why

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "assets": assets,
                "created_at": created_at,
                "ended_at": ended_at,
                "id": id,
                "launched_by": launched_by,
                "model": model,
                "page": page,
                "partitions": partitions,
                "rejected": rejected,
                "restored_from": restored_from,
                "started_at": started_at,
                "state": state,
                "stopped_by": stopped_by,
                "version": version,
                "why": why,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        assets = cast(list[str], d.pop("assets"))

        created_at = datetime.datetime.fromisoformat(d.pop("created_at"))

        def _parse_ended_at(data: object) -> datetime.datetime | None:
            if data is None:
                return data
            try:
                if not isinstance(data, str):
                    raise TypeError()
                ended_at_type_0 = datetime.datetime.fromisoformat(data)

                return ended_at_type_0
            except (TypeError, ValueError, AttributeError, KeyError):
                pass
            return cast(datetime.datetime | None, data)

        ended_at = _parse_ended_at(d.pop("ended_at"))

        id = d.pop("id")

        def _parse_launched_by(data: object) -> str | None:
            if data is None:
                return data
            return cast(None | str, data)

        launched_by = _parse_launched_by(d.pop("launched_by"))

        model = d.pop("model")

        page = d.pop("page")

        partitions = d.pop("partitions")

        rejected = d.pop("rejected")

        restored_from = d.pop("restored_from")

        def _parse_started_at(data: object) -> datetime.datetime | None:
            if data is None:
                return data
            try:
                if not isinstance(data, str):
                    raise TypeError()
                started_at_type_0 = datetime.datetime.fromisoformat(data)

                return started_at_type_0
            except (TypeError, ValueError, AttributeError, KeyError):
                pass
            return cast(datetime.datetime | None, data)

        started_at = _parse_started_at(d.pop("started_at"))

        state = RunDocumentState(d.pop("state"))

        def _parse_stopped_by(data: object) -> str | None:
            if data is None:
                return data
            return cast(None | str, data)

        stopped_by = _parse_stopped_by(d.pop("stopped_by"))

        def _parse_version(data: object) -> int | None:
            if data is None:
                return data
            return cast(int | None, data)

        version = _parse_version(d.pop("version"))

        why = d.pop("why")

        run_document = cls(
            assets=assets,
            created_at=created_at,
            ended_at=ended_at,
            id=id,
            launched_by=launched_by,
            model=model,
            page=page,
            partitions=partitions,
            rejected=rejected,
            restored_from=restored_from,
            started_at=started_at,
            state=state,
            stopped_by=stopped_by,
            version=version,
            why=why,
        )

        return run_document
