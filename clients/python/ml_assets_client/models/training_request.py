from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.training_request_config import TrainingRequestConfig


T = TypeVar("T", bound="TrainingRequest")


@_attrs_define
class TrainingRequest:
    """Training of a model: validation, training set, training, evaluation and registration.

    Attributes:
        model (str):
        partition (str):
        config (TrainingRequestConfig | Unset): Changes of the declared `resources` of the workers, such as `memory`.
    """

    model: str
    partition: str
    config: TrainingRequestConfig | Unset = UNSET

    def to_dict(self) -> dict[str, Any]:
        model = self.model

        partition = self.partition

        config: dict[str, Any] | Unset = UNSET
        if not isinstance(self.config, Unset):
            config = self.config.to_dict()

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "model": model,
                "partition": partition,
            }
        )
        if config is not UNSET:
            field_dict["config"] = config

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.training_request_config import TrainingRequestConfig

        d = dict(src_dict)
        model = d.pop("model")

        partition = d.pop("partition")

        _config = d.pop("config", UNSET)
        config: TrainingRequestConfig | Unset
        if isinstance(_config, Unset):
            config = UNSET
        else:
            config = TrainingRequestConfig.from_dict(_config)

        training_request = cls(
            model=model,
            partition=partition,
            config=config,
        )

        return training_request
