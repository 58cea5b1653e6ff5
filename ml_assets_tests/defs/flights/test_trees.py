"""The trees and the network of the flights: one report compares them on the same rows."""

from ml_assets.pipeline.spec import PipelineSpec
from ml_assets_tests.defs.flights.flights_specs import pipeline


def test_trees_and_network_read_the_same_rows_and_columns() -> None:
    network, trees = pipeline("flight_delay"), pipeline("flight_delay_trees")
    assert _rows(trees) == _rows(network)
    assert trees.evaluation.compared_with == (network.name,)


def _rows(spec: PipelineSpec) -> dict[str, object]:
    """Everything that chooses or encodes rows, and the slices that measure them."""
    measured = spec.evaluation
    return {
        **spec.model_dump(include={"features", "window", "partitions"}),
        "measured": (measured.objective, measured.bootstrap_unit, measured.slices, measured.baseline),
    }
