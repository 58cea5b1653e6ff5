from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

from ..models.experiment_run_details_status import ExperimentRunDetailsStatus

if TYPE_CHECKING:
    from ..models.experiment_run_details_artifacts import ExperimentRunDetailsArtifacts
    from ..models.experiment_run_details_metrics import ExperimentRunDetailsMetrics
    from ..models.experiment_run_details_params import ExperimentRunDetailsParams
    from ..models.experiment_run_details_tags import ExperimentRunDetailsTags


T = TypeVar("T", bound="ExperimentRunDetails")


@_attrs_define
class ExperimentRunDetails:
    """Training as MLflow has it, with its parameters and files.

    Attributes:
        artifacts (ExperimentRunDetailsArtifacts): File to bytes.
        dagster_run (str):
        data_version (str): Digest of the rows that it read.
        ended_at (datetime.datetime | None):
        git_commit (str):
        id (str):
        lake_commit (str):
        metrics (ExperimentRunDetailsMetrics):
        name (str):
        params (ExperimentRunDetailsParams):
        started_at (datetime.datetime | None):
        status (ExperimentRunDetailsStatus):
        tags (ExperimentRunDetailsTags):
        training_folder (str): Address of checkpoints and events.
    """

    artifacts: ExperimentRunDetailsArtifacts
    dagster_run: str
    data_version: str
    ended_at: datetime.datetime | None
    git_commit: str
    id: str
    lake_commit: str
    metrics: ExperimentRunDetailsMetrics
    name: str
    params: ExperimentRunDetailsParams
    started_at: datetime.datetime | None
    status: ExperimentRunDetailsStatus
    tags: ExperimentRunDetailsTags
    training_folder: str

    def to_dict(self) -> dict[str, Any]:
        artifacts = self.artifacts.to_dict()

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

        params = self.params.to_dict()

        started_at: str | None
        if isinstance(self.started_at, datetime.datetime):
            started_at = self.started_at.isoformat()
        else:
            started_at = self.started_at

        status = self.status.value

        tags = self.tags.to_dict()

        training_folder = self.training_folder

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "artifacts": artifacts,
                "dagster_run": dagster_run,
                "data_version": data_version,
                "ended_at": ended_at,
                "git_commit": git_commit,
                "id": id,
                "lake_commit": lake_commit,
                "metrics": metrics,
                "name": name,
                "params": params,
                "started_at": started_at,
                "status": status,
                "tags": tags,
                "training_folder": training_folder,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.experiment_run_details_artifacts import ExperimentRunDetailsArtifacts
        from ..models.experiment_run_details_metrics import ExperimentRunDetailsMetrics
        from ..models.experiment_run_details_params import ExperimentRunDetailsParams
        from ..models.experiment_run_details_tags import ExperimentRunDetailsTags

        d = dict(src_dict)
        artifacts = ExperimentRunDetailsArtifacts.from_dict(d.pop("artifacts"))

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

        metrics = ExperimentRunDetailsMetrics.from_dict(d.pop("metrics"))

        name = d.pop("name")

        params = ExperimentRunDetailsParams.from_dict(d.pop("params"))

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

        status = ExperimentRunDetailsStatus(d.pop("status"))

        tags = ExperimentRunDetailsTags.from_dict(d.pop("tags"))

        training_folder = d.pop("training_folder")

        experiment_run_details = cls(
            artifacts=artifacts,
            dagster_run=dagster_run,
            data_version=data_version,
            ended_at=ended_at,
            git_commit=git_commit,
            id=id,
            lake_commit=lake_commit,
            metrics=metrics,
            name=name,
            params=params,
            started_at=started_at,
            status=status,
            tags=tags,
            training_folder=training_folder,
        )

        return experiment_run_details
