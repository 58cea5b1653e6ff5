"""Environments of a home, seen from main: branches of the lake with a ledger, tracking and Dagster of their own."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ml_assets.context.data import Data
from ml_assets.context.project import Project
from ml_assets.data.tables.environments import (
    EnvironmentChanges,
    MergedEnvironment,
    changes_of,
    create_environment,
    drop_environment,
    merge_environment,
)
from ml_assets.data.tables.history.diff import LakeDifference, compare_lake
from resources.lake.environments import Environment, environments, read_environment
from resources.ledger import Person

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ml_assets.pages.version_difference import EnvironmentModel


@dataclass(frozen=True, kw_only=True)
class EnvironmentDifference:
    """Difference of an environment from the commit of main at which it began."""

    changes: EnvironmentChanges
    lake: LakeDifference
    models: "Sequence[EnvironmentModel]"
    """Models that the environment trained, beside main's."""


@dataclass(frozen=True)
class Environments:
    """Environments of a home."""

    main: Project
    require_writes: "Callable[[str], None]"

    def create(self, name: str) -> Environment:
        """Create an environment at main's head, without a copy of data. `name` has small letters, digits and _.

        Raises `EnvironmentExists` and `ReadOnly`.
        """
        self.require_writes("env.create")
        return create_environment(self.main.platform, name, self.main.settings.author)

    def list(self) -> "list[EnvironmentChanges]":
        """Return the environments with their changed partitions and their conflicts with main."""
        return [changes_of(self.main.platform, one) for one in environments(self.main.settings.home)]

    def diff(self, name: str, *, read_rows: bool = True) -> EnvironmentDifference:
        """Compare an environment with the commit of main at which it began, and its models with main's.

        Raises `EnvironmentMissing`.
        """
        from ml_assets.pages.version_difference import models_trained_in

        main, environment = self.main.platform, read_environment(self.main.settings.home, name)
        changes, keys = changes_of(main, environment), Data(self.main).primary_keys()
        return EnvironmentDifference(
            changes=changes,
            lake=compare_lake(main.whole_lake, environment.base, changes.head, keys, read_rows=read_rows),
            models=models_trained_in(main, main.inside(name), self.main.declared.pipelines()),
        )

    def merge(self, name: str, *, by: Person) -> MergedEnvironment:
        """Make the changed partitions of an environment main's, with their verdicts. Nothing is built again.

        Raises `EnvironmentConflict`, `NotMergeable`, `EnvironmentMissing` and `ReadOnly`.
        """
        self.require_writes("env.merge")
        return merge_environment(self.main.platform, name, by)

    def drop(self, name: str) -> None:
        """Delete an environment: its branches, ledger, tracking and Dagster home. Main stays as it is.

        Raises `EnvironmentMissing` and `ReadOnly`.
        """
        self.require_writes("env.drop")
        drop_environment(self.main.platform, name)
