"""Base of the components: a strict spec from YAML."""

from datetime import timedelta
from typing import Any, ClassVar, Self

import dagster as dg
from pydantic import BaseModel

from ml_assets.components.specs import FreshnessSection
from ml_assets.foundation.sections import Section


class SpecComponent(dg.Component):
    """Component whose attributes are one strict spec.

    Not `Resolvable`, because that would turn the spec's fields into templates, which accept wrong words.
    """

    spec_type: ClassVar[type[Section]]
    produces: ClassVar[tuple[str, ...]] = ("asset", "asset_check")

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Return the description that `dg list components` shows."""
        return dg.ComponentTypeSpec(
            description=cls.__doc__, owners=["team:ml-platform"], tags=["ml"], produces=list(cls.produces)
        )

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Return the pydantic model of the YAML attributes."""
        return cls.spec_type

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Return the component for validated attributes."""
        return cls(attributes)


def freshness_policy(section: FreshnessSection | None) -> dg.FreshnessPolicy | None:
    """Return Dagster's policy for a section; None without a section."""
    if section is None:
        return None
    warn = section.warn_after_hours
    return dg.FreshnessPolicy.time_window(
        fail_window=timedelta(hours=section.fail_after_hours),
        warn_window=timedelta(hours=warn) if warn is not None else None,
    )
