"""Declared models and tables, all definitions, and Dagster's storage: the parts of a project that need Dagster."""

import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar

import dagster as dg
from dagster import BetaWarning, PreviewWarning

from ml_assets.components.base import SpecComponent
from ml_assets.components.behind import TABLES, SingleComponents, declared_as
from ml_assets.components.dataset import Dataset
from ml_assets.components.declarations import in_one_line
from ml_assets.components.feature_table import FeatureTable
from ml_assets.components.metadata import declared_tables
from ml_assets.components.specs import DatasetSpec, FeatureTableSpec, TrainingPipelineSpec
from ml_assets.components.training_pipeline import TrainingPipeline
from ml_assets.context.errors import HomeRefused, NotFound
from ml_assets.dagster_host.defs_folder import PipelineTree
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.spec import TableSpec
from ml_assets.definitions import load, loading
from ml_assets.foundation.checkout import ROOT
from resources.files import locked
from resources.platform import Platform
from resources.settings import Settings
from resources.words import did_you_mean

Component = TypeVar("Component", bound=SpecComponent)
Found = TypeVar("Found")


class DeclaredComponents:
    """Components below `defs`, each read from its file once. A component that is asked for by name is read alone."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._definitions_of: dict[frozenset[str], dg.Definitions | None] = {}
        self._has_loaded = False

    @cached_property
    def _tree(self) -> PipelineTree:
        # Dagster's warnings about parameters in beta are for developers.
        warnings.simplefilter("ignore", BetaWarning)
        warnings.simplefilter("ignore", PreviewWarning)
        return PipelineTree.for_project(ROOT)

    @cached_property
    def _single(self) -> SingleComponents:
        return SingleComponents(self._tree)

    @contextmanager
    def _loading(self) -> Generator[None]:
        # Definitions of an earlier context may be garbage. Those of this one stay.
        replaces, self._has_loaded = not self._has_loaded, True
        with loading(replaces=replaces):
            yield

    def _find(self, of_type: type[Component], name: str) -> Component | None:
        with self._loading():
            return self._single.find(of_type, name)

    def _components(self, of_type: type[Component]) -> Sequence[Component]:
        with in_one_line(), self._loading():
            return self._tree.get_all_components(of_type)

    def pipelines(self) -> dict[str, TrainingPipelineSpec]:
        """Return the declared models by name."""
        return {one.spec.name: one.spec for one in self._components(TrainingPipeline)}

    def pipeline(self, model: str) -> TrainingPipelineSpec:
        """Return the declared model of this name. `NotFound` names the nearest declared name, or all."""
        return self.find_pipeline(model) or _named("model", model, self.pipelines())

    def find_pipeline(self, model: str) -> TrainingPipelineSpec | None:
        """Return the declared model of this name; None if there is none."""
        alone = self._find(TrainingPipeline, model)
        return alone.spec if alone else self.pipelines().get(model)

    def table_components(self) -> dict[str, Dataset | FeatureTable]:
        """Return the declared datasets and feature tables by the name of their table, such as `features/NAME`."""
        datasets = {f"datasets/{one.spec.name}": one for one in self._components(Dataset)}
        features = {f"features/{one.spec.name}": one for one in self._components(FeatureTable)}
        return {**datasets, **features}

    def feature_table(self, table: str) -> FeatureTableSpec:
        """Return the declared feature table `features/NAME`. `NotFound` names the nearest declared name, or all."""
        name = table.removeprefix("features/")
        if alone := self._find(FeatureTable, name):
            return alone.spec
        return _named(
            "feature table", name, {one.spec.name: one.spec for one in self._components(FeatureTable)}
        )

    def dataset(self, table: str) -> DatasetSpec:
        """Return the declared dataset `datasets/NAME`. `NotFound` names the nearest declared name, or all."""
        name = table.removeprefix("datasets/")
        if alone := self._find(Dataset, name):
            return alone.spec
        return _named("dataset", name, {one.spec.name: one.spec for one in self._components(Dataset)})

    def tables(self) -> dict[str, TableSpec]:
        """Return the declared datasets and feature tables by the name of their table, as they are published."""
        return {name: one.table for name, one in self.table_components().items()}

    def table(self, name: str) -> TableSpec:
        """Return the declared table of this name. `NotFound` names the nearest declared name, or all."""
        kind, _, rest = name.partition("/")
        of_type = TABLES.get(kind)
        alone = self._find(of_type, rest) if of_type else None
        return alone.table if alone else _named("table", name, self.tables())

    def require(self, name: str) -> None:
        """Raise `NotFound` with the nearest names if neither a model nor a table has this name."""
        if name.partition("/")[0] in TABLES:
            self.table(name)
        else:
            self.pipeline(name)

    @cached_property
    def definitions(self) -> dg.Definitions:
        """All definitions."""
        return load(self._settings, self._tree)

    def definitions_of(self, assets: Iterable[str], platform: Platform) -> dg.Definitions | None:
        """Return all that a run of `assets` needs, with the tables behind them; None if only all definitions do."""
        names = frozenset(map(declared_as, assets))
        if names not in self._definitions_of:
            with self._loading():
                from ml_assets.assembly import runnable

                pipelines = self._single.definitions_of(names)
                self._definitions_of[names] = pipelines and runnable(
                    pipelines, platform, self.tables_with(pipelines)
                )
        return self._definitions_of[names]

    def tables_with(self, defs: dg.Definitions) -> DeclaredTables:
        """Return all declared tables: those of `defs` as they are there, others from their files, once asked for."""
        return declared_tables(defs).completed_by(self._single.table)


def open_storage(settings: Settings) -> dg.DagsterInstance:
    """Return Dagster's storage: under the home, or at `dagster_url`. Raises `HomeRefused` if that does not answer."""
    home, url = str(settings.dagster_home), settings.dagster_url
    if (
        url is None
    ):  # `dagster_host.storage` creates its files completely, even if several processes open them
        return dg.DagsterInstance.from_config(home)
    from dagster_postgres.utils import DagsterPostgresException
    from sqlalchemy.exc import SQLAlchemyError

    # Two first commands at the same time would create the same tables, and Dagster would let one of them fail.
    with locked(settings.dagster_home / "opening.lock"):
        try:
            return dg.DagsterInstance.from_config(home)
        except (DagsterPostgresException, SQLAlchemyError) as error:
            why = url.hide_in(str(error.__cause__ or error).partition("\n")[0])
            raise HomeRefused(
                f"Dagster's storage at {url} cannot be opened ({why}): check that PostgreSQL runs, that the database "
                "exists, and ML_ASSETS_DAGSTER_URL; then run it again"
            ) from None


def _named(kind: str, name: str, found: Mapping[str, Found]) -> Found:
    if name not in found:
        raise NotFound(f"no {kind} is named '{name}'{did_you_mean(name, found)}")
    return found[name]
