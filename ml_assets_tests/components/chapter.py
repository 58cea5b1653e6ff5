"""One run of the execution set, and what it left: what a test about a model's life reads."""

from dataclasses import dataclass
from typing import Any

from dagster._core.execution.execute_in_process_result import ExecuteInProcessResult

from ml_assets_tests.components.world import World, facts_of


@dataclass(frozen=True)
class Chapter:
    """One run of the execution set."""

    result: ExecuteInProcessResult
    facts: dict[str, dict[str, Any]]
    """Asset → metadata of its materialization as plain values; absent where it was not materialized."""
    branches: dict[str, str]
    """The lake's kept branches after the run."""


def live(world: World, day: str) -> Chapter:
    """Materialize the plant's execution set for `day`, which must succeed."""
    result = world.train(day)
    return Chapter(result, facts_of(result, day), world.platform.lake.branches("keep-"))
