"""The trees, the network and the blend of the flights: reports compare them on the same rows."""

import pytest

from ml_assets.model.steps.spec import PipelineSpec
from ml_assets_tests.defs.flights.flights_specs import pipeline


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("flight_delay_trees", ("flight_delay",)),
        ("flight_delay_blend", ("flight_delay", "flight_delay_trees")),
    ],
)
def test_models_of_the_flights_read_the_same_rows_and_columns(name: str, others: tuple[str, ...]) -> None:
    network, model = pipeline("flight_delay"), pipeline(name)
    assert _rows(model) == _rows(network)
    assert model.evaluation.compared_with == others


def test_the_blend_grows_the_trees_that_are_declared_alone() -> None:
    trees, blend = (
        pipeline(name).model.hyperparameters for name in ("flight_delay_trees", "flight_delay_blend")
    )
    assert trees.items() <= blend.items()


def _rows(spec: PipelineSpec) -> dict[str, object]:
    """Everything that chooses or encodes rows, and the slices that measure them."""
    measured = spec.evaluation
    return {
        **spec.model_dump(include={"features", "window", "partitions"}),
        "measured": (measured.objective, measured.bootstrap_unit, measured.slices, measured.baseline),
    }
