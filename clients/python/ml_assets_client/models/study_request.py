from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.study_request_config import StudyRequestConfig


T = TypeVar("T", bound="StudyRequest")


@_attrs_define
class StudyRequest:
    """Study of a model: the search that its section `tuning` declares, on the newest window.

    Space, metric, sampler, pruner, budget and the seed of a study are declared.

        Attributes:
            model (str):
            config (StudyRequestConfig | Unset): Changes of the declared `resources` of the workers, such as `memory`.
    """

    model: str
    config: StudyRequestConfig | Unset = UNSET

    def to_dict(self) -> dict[str, Any]:
        model = self.model

        config: dict[str, Any] | Unset = UNSET
        if not isinstance(self.config, Unset):
            config = self.config.to_dict()

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "model": model,
            }
        )
        if config is not UNSET:
            field_dict["config"] = config

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.study_request_config import StudyRequestConfig

        d = dict(src_dict)
        model = d.pop("model")

        _config = d.pop("config", UNSET)
        config: StudyRequestConfig | Unset
        if isinstance(_config, Unset):
            config = UNSET
        else:
            config = StudyRequestConfig.from_dict(_config)

        study_request = cls(
            model=model,
            config=config,
        )

        return study_request
