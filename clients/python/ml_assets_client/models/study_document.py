from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

if TYPE_CHECKING:
    from ..models.run_document import RunDocument
    from ..models.trial_document import TrialDocument


T = TypeVar("T", bound="StudyDocument")


@_attrs_define
class StudyDocument:
    """Study of hyperparameters.

    Attributes:
        because (str): Reason of the choice.
        chosen (int | None): Number of the chosen trial; null before there is a result.
        direction (str): `minimize`: less is better; `maximize`: more is better.
        metric (str): Metric by which trials are compared.
        model (str):
        run (RunDocument): Run.
        trials (list[TrialDocument]): By number; while the study runs, those of its newest 10,000 points.
    """

    because: str
    chosen: int | None
    direction: str
    metric: str
    model: str
    run: RunDocument
    trials: list[TrialDocument]

    def to_dict(self) -> dict[str, Any]:
        because = self.because

        chosen: int | None
        chosen = self.chosen

        direction = self.direction

        metric = self.metric

        model = self.model

        run = self.run.to_dict()

        trials = []
        for trials_item_data in self.trials:
            trials_item = trials_item_data.to_dict()
            trials.append(trials_item)

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "because": because,
                "chosen": chosen,
                "direction": direction,
                "metric": metric,
                "model": model,
                "run": run,
                "trials": trials,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.run_document import RunDocument
        from ..models.trial_document import TrialDocument

        d = dict(src_dict)
        because = d.pop("because")

        def _parse_chosen(data: object) -> int | None:
            if data is None:
                return data
            return cast(int | None, data)

        chosen = _parse_chosen(d.pop("chosen"))

        direction = d.pop("direction")

        metric = d.pop("metric")

        model = d.pop("model")

        run = RunDocument.from_dict(d.pop("run"))

        trials = []
        _trials = d.pop("trials")
        for trials_item_data in _trials:
            trials_item = TrialDocument.from_dict(trials_item_data)

            trials.append(trials_item)

        study_document = cls(
            because=because,
            chosen=chosen,
            direction=direction,
            metric=metric,
            model=model,
            run=run,
            trials=trials,
        )

        return study_document
