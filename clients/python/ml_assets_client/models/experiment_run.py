from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

from ..models.experiment_run_status import ExperimentRunStatus

if TYPE_CHECKING:
    from ..models.experiment_run_metrics import ExperimentRunMetrics


T = TypeVar("T", bound="ExperimentRun")


@_attrs_define
class ExperimentRun:
    """Training as MLflow has it.

    Attributes:
        dagster_run (str):
        data_version (str): Digest of the rows that it read.
        ended_at (datetime.datetime | None):
        git_commit (str):
        id (str):
        lake_commit (str):
        metrics (ExperimentRunMetrics):
        name (str):
        started_at (datetime.datetime | None):
        status (ExperimentRunStatus):
    """

    dagster_run: str
    data_version: str
    ended_at: datetime.datetime | None
    git_commit: str
    id: str
    lake_commit: str
    metrics: ExperimentRunMetrics
    name: str
    started_at: datetime.datetime | None
    status: ExperimentRunStatus

    def to_dict(self) -> dict[str, Any]:
        dagster_run = self.dagster_run

        data_version = self.data_version

        ended_at: str | None
        if isinstance(self.ended_at, datetime.datetime):
            ended_at = self.ended_at.isoformat()
        else:
            ended_at = self.ended_at

        git_commit = self.git_commit

        id = self.id

        lake_commit = self.lake_commit

        metrics = self.metrics.to_dict()

        name = self.name

        started_at: str | None
        if isinstance(self.started_at, datetime.datetime):
            started_at = self.started_at.isoformat()
        else:
            started_at = self.started_at

        status = self.status.value

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "dagster_run": dagster_run,
                "data_version": data_version,
                "ended_at": ended_at,
                "git_commit": git_commit,
                "id": id,
                "lake_commit": lake_commit,
                "metrics": metrics,
                "name": name,
                "started_at": started_at,
                "status": status,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.experiment_run_metrics import ExperimentRunMetrics

        d = dict(src_dict)
        dagster_run = d.pop("dagster_run")

        data_version = d.pop("data_version")

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

        git_commit = d.pop("git_commit")

        id = d.pop("id")

        lake_commit = d.pop("lake_commit")

        metrics = ExperimentRunMetrics.from_dict(d.pop("metrics"))

        name = d.pop("name")

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

        status = ExperimentRunStatus(d.pop("status"))

        experiment_run = cls(
            dagster_run=dagster_run,
            data_version=data_version,
            ended_at=ended_at,
            git_commit=git_commit,
            id=id,
            lake_commit=lake_commit,
            metrics=metrics,
            name=name,
            started_at=started_at,
            status=status,
        )

        return experiment_run
