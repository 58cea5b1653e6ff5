from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.scheduled_share_document import ScheduledShareDocument


T = TypeVar("T", bound="ScheduledTrainingsDocument")


@_attrs_define
class ScheduledTrainingsDocument:
    """Scheduled trainings of all pipelines that ended since a day.

    Attributes:
        pipelines (list[ScheduledShareDocument]):
        since (datetime.date | None):
    """

    pipelines: list[ScheduledShareDocument]
    since: datetime.date | None

    def to_dict(self) -> dict[str, Any]:
        pipelines = []
        for pipelines_item_data in self.pipelines:
            pipelines_item = pipelines_item_data.to_dict()
            pipelines.append(pipelines_item)

        since: str | None
        if isinstance(self.since, datetime.date):
            since = self.since.isoformat()
        else:
            since = self.since

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "pipelines": pipelines,
                "since": since,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.scheduled_share_document import ScheduledShareDocument

        d = dict(src_dict)
        pipelines = []
        _pipelines = d.pop("pipelines")
        for pipelines_item_data in _pipelines:
            pipelines_item = ScheduledShareDocument.from_dict(pipelines_item_data)

            pipelines.append(pipelines_item)

        def _parse_since(data: object) -> datetime.date | None:
            if data is None:
                return data
            try:
                if not isinstance(data, str):
                    raise TypeError()
                since_type_0 = datetime.date.fromisoformat(data)

                return since_type_0
            except (TypeError, ValueError, AttributeError, KeyError):
                pass
            return cast(datetime.date | None, data)

        since = _parse_since(d.pop("since"))

        scheduled_trainings_document = cls(
            pipelines=pipelines,
            since=since,
        )

        return scheduled_trainings_document
