from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import define as _attrs_define

from ..types import UNSET, Unset

if TYPE_CHECKING:
    from ..models.launch_request_config import LaunchRequestConfig


T = TypeVar("T", bound="LaunchRequest")


@_attrs_define
class LaunchRequest:
    """Launch of a model, a table, a study, predictions or their performance, as `ml-assets launch` takes it.

    Attributes:
        target (str):
        config (LaunchRequestConfig | Unset): Changes of the declared `resources` of the workers, such as `memory`.
        partitions (None | str | Unset): `KEY`, or `FIRST..LAST`; absent for a target without partitions.
    """

    target: str
    config: LaunchRequestConfig | Unset = UNSET
    partitions: str | Unset | None = UNSET

    def to_dict(self) -> dict[str, Any]:
        target = self.target

        config: dict[str, Any] | Unset = UNSET
        if not isinstance(self.config, Unset):
            config = self.config.to_dict()

        partitions: str | Unset | None
        if isinstance(self.partitions, Unset):
            partitions = UNSET
        else:
            partitions = self.partitions

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "target": target,
            }
        )
        if config is not UNSET:
            field_dict["config"] = config
        if partitions is not UNSET:
            field_dict["partitions"] = partitions

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        from ..models.launch_request_config import LaunchRequestConfig

        d = dict(src_dict)
        target = d.pop("target")

        _config = d.pop("config", UNSET)
        config: LaunchRequestConfig | Unset
        if isinstance(_config, Unset):
            config = UNSET
        else:
            config = LaunchRequestConfig.from_dict(_config)

        def _parse_partitions(data: object) -> str | Unset | None:
            if data is None:
                return data
            if isinstance(data, Unset):
                return data
            return cast(None | str | Unset, data)

        partitions = _parse_partitions(d.pop("partitions", UNSET))

        launch_request = cls(
            target=target,
            config=config,
            partitions=partitions,
        )

        return launch_request
