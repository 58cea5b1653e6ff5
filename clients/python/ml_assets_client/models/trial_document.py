from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

from ..models.trial_document_state import TrialDocumentState

if TYPE_CHECKING:
    from ..models.trial_document_parameters import TrialDocumentParameters


T = TypeVar("T", bound="TrialDocument")


@_attrs_define
class TrialDocument:
    """Trial of a study.

    Attributes:
        loss (float | None): Lowest validation loss so far.
        number (int):
        parameters (TrialDocumentParameters): Values that it tries; empty while its study runs.
        state (TrialDocumentState):
        step (int): Newest step.
        value (float | None): Value of the study's metric for the best epoch: the loss so far, or null until the trial
            finished.
        why (str): Reason of a failure or of a pause.
    """

    loss: float | None
    number: int
    parameters: TrialDocumentParameters
    state: TrialDocumentState
    step: int
    value: float | None
    why: str

    def to_dict(self) -> dict[str, Any]:
        loss: float | None
        loss = self.loss

        number = self.number

        parameters = self.parameters.to_dict()

        state = self.state.value

        step = self.step

        value: float | None
        value = self.value

        why = self.why

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "loss": loss,
                "number": number,
                "parameters": parameters,
                "state": state,
                "step": step,
                "value": value,
                "why": why,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.trial_document_parameters import TrialDocumentParameters

        d = dict(src_dict)

        def _parse_loss(data: object) -> float | None:
            if data is None:
                return data
            return cast(float | None, data)

        loss = _parse_loss(d.pop("loss"))

        number = d.pop("number")

        parameters = TrialDocumentParameters.from_dict(d.pop("parameters"))

        state = TrialDocumentState(d.pop("state"))

        step = d.pop("step")

        def _parse_value(data: object) -> float | None:
            if data is None:
                return data
            return cast(float | None, data)

        value = _parse_value(d.pop("value"))

        why = d.pop("why")

        trial_document = cls(
            loss=loss,
            number=number,
            parameters=parameters,
            state=state,
            step=step,
            value=value,
            why=why,
        )

        return trial_document
