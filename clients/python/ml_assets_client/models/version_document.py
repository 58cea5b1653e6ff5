from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import define as _attrs_define

T = TypeVar("T", bound="VersionDocument")


@_attrs_define
class VersionDocument:
    """Registered version.

    Attributes:
        bundle_digest (str):
        model (str):
        semantic (str):
        stage (str):
        tracking_run (str): Id of the run in the experiment of the model.
        version (int):
    """

    bundle_digest: str
    model: str
    semantic: str
    stage: str
    tracking_run: str
    version: int

    def to_dict(self) -> dict[str, Any]:
        bundle_digest = self.bundle_digest

        model = self.model

        semantic = self.semantic

        stage = self.stage

        tracking_run = self.tracking_run

        version = self.version

        field_dict: dict[str, Any] = {}

        field_dict.update(
            {
                "bundle_digest": bundle_digest,
                "model": model,
                "semantic": semantic,
                "stage": stage,
                "tracking_run": tracking_run,
                "version": version,
            }
        )

        return field_dict

    @classmethod
    def from_dict(cls: type[T], src_dict: Mapping[str, Any]) -> T:
        d = dict(src_dict)
        bundle_digest = d.pop("bundle_digest")

        model = d.pop("model")

        semantic = d.pop("semantic")

        stage = d.pop("stage")

        tracking_run = d.pop("tracking_run")

        version = d.pop("version")

        version_document = cls(
            bundle_digest=bundle_digest,
            model=model,
            semantic=semantic,
            stage=stage,
            tracking_run=tracking_run,
            version=version,
        )

        return version_document
