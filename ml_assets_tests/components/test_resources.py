"""The `resources` section of a pipeline: what it takes, what it refuses, and how a launch changes it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.foundation.checkout import ROOT
from resources.launcher.resource_profile import ProfileRefused, changes_of


def spec_with(resources: dict[str, Any]) -> TrainingPipelineSpec:
    """The small pipeline, with other resources."""
    declared = ROOT / "ml_assets" / "defs" / "store_demand" / "defs.yaml"
    (attributes,) = [
        document["attributes"]
        for document in yaml.safe_load_all(Path(declared).read_text())
        if document["type"].endswith("TrainingPipeline")
    ]
    return TrainingPipelineSpec.model_validate({**attributes, "resources": resources})


def test_a_partition_and_a_launch_each_change_what_they_name() -> None:
    spec = spec_with({"memory": "2Gi", "cpu": 1, "partitions": {"2024-05-27": {"memory": "4Gi", "nodes": 2}}})
    assert spec.resources.of("2024-05-20").memory == "2Gi"
    special = spec.resources.of("2024-05-27", changes_of("cpu=3"))
    assert (special.memory, special.nodes, special.cpu) == ("4Gi", 2, "3")


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"memroy": "2Gi"}, "unknown key 'memroy': did you mean 'memory'"),
        ({"memory": "two"}, "String should match pattern"),
        ({"nodes": 3}, "training.workers 2 cannot be shared equally by resources.nodes 3"),
        ({"nodes": {"min": 1, "max": 3}}, "training.workers 2 cannot be shared equally by resources.nodes 3"),
        ({"nodes": {"min": 2, "max": 1}}, "nodes.max 1 is less than nodes.min 2"),
        (
            {"partitions": {"2024-05-27": {"nodes": 3}}},
            "resources.partitions.2024-05-27\n  Value error, training.workers 2 cannot be shared equally by",
        ),
        ({"partitions": {"2024-05-27": {"ram": "1Gi"}}}, "resources have no key 'ram'"),
        ({"volumes": [{"mount_path": "/a"}]}, "one of claim, secret, config_map, host_path; /a has none"),
    ],
)
def test_what_cannot_be_is_refused_by_name(resources: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        spec_with(resources)
    assert said in str(refused.value)


def test_a_launch_cannot_ask_for_what_resources_have_not() -> None:
    with pytest.raises(ProfileRefused, match="resources have no key 'ram'"):
        spec_with({}).resources.of("2024-05-27", changes_of("ram=1Gi"))
