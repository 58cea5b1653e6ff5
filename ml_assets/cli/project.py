"""Project for the commands: settings, platform, definitions, declared components."""

import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from ml_assets.cli.dagster_settings import write_dagster_settings
from ml_assets.cli.problems import Problem
from ml_assets.cli.variables import read_settings
from ml_assets.dagster_host.instance import EVENT_BATCH
from ml_assets.foundation.checkout import ROOT
from ml_assets.foundation.reports.text import in_terminal
from resources.files import locked
from resources.platform import Platform
from resources.settings import Settings
from resources.words import did_you_mean

if TYPE_CHECKING:
    import dagster as dg

    from ml_assets.components.base import SpecComponent
    from ml_assets.data.tables.spec import TableSpec
    from resources.ledger import Person


Component = TypeVar("Component", bound="SpecComponent")


@dataclass(frozen=True)
class Project:
    """The project for one command."""

    settings: Settings
    patience_seconds: float | None = None
    """Wait for servers; passed to `Platform`."""

    @classmethod
    def here(cls, patience_seconds: float | None = None) -> "Project":
        """Return the project of the environment. Prepares the home and sets DAGSTER_HOME."""
        settings = read_settings()
        prepare_home(settings)
        return cls(settings, patience_seconds)

    @classmethod
    def on_main(cls) -> "Project":
        """Return the project on main, also if ML_ASSETS_ENV names an environment."""
        settings = read_settings(on_main=True)
        prepare_home(settings)
        return cls(settings)

    @classmethod
    @contextmanager
    def to_read(cls, *, on_main: bool = False) -> Iterator["Project"]:
        """Yield the project of the environment, or of main, for a command that changes nothing.

        Lake, ledger and Dagster create their files when they are first opened. If the home has none yet, they are
        created in a temporary folder, which is as empty as the home.
        """
        settings = read_settings(on_main=on_main)
        _require_environment(settings)
        _point_dagster(settings)
        if _is_made(settings):
            _make_home(settings)
            yield cls(settings)
            return
        with tempfile.TemporaryDirectory(prefix="ml-assets-", ignore_cleanup_errors=True) as empty:
            settings = settings.model_copy(update={"home": Path(empty)})
            _make_home(settings)
            yield cls(settings)

    @classmethod
    def to_decide(cls) -> "tuple[Project, Person]":
        """Return the project for a command that decides, and the person who acts.

        Raises `IdentityRefused` and `IdentityNeeded` before anything else is looked at: with accounts in the ledger,
        the person must act for one in force. The ledger checks it again when it stores the decision.
        """
        project = cls.here()
        person = project.platform.acting
        project.platform.ledger.accounts.require_identity(person)
        return project, person

    @classmethod
    def read_only(cls, *, on_main: bool = False) -> "Project":
        """Return the project of `to_read` until the running command ends."""
        return click.get_current_context().with_resource(cls.to_read(on_main=on_main))

    @cached_property
    def platform(self) -> Platform:
        """Platform of these settings."""
        return Platform(self.settings, self.patience_seconds)

    @cached_property
    def defs(self) -> "dg.Definitions":
        """All definitions."""
        from dagster import BetaWarning, PreviewWarning

        from ml_assets.definitions import load

        # Warnings about Dagster's beta parameters are for developers, not for users of a command.
        warnings.simplefilter("ignore", BetaWarning)
        warnings.simplefilter("ignore", PreviewWarning)
        return load(self.settings)

    @cached_property
    def instance(self) -> "dg.DagsterInstance":
        """Dagster's storage: under the home, or at `dagster_url`. Raises `Problem` if that does not answer."""
        import dagster as dg

        home, url = str(self.settings.dagster_home), self.settings.dagster_url
        if (
            url is None
        ):  # `dagster_host.storage` creates its files completely, even if several processes open them
            return dg.DagsterInstance.from_config(home)
        from dagster_postgres.utils import DagsterPostgresException
        from sqlalchemy.exc import SQLAlchemyError

        # Two first commands at the same time would create the same tables, and Dagster would let one of them fail.
        with locked(self.settings.dagster_home / "opening.lock"):
            try:
                return dg.DagsterInstance.from_config(home)
            except (DagsterPostgresException, SQLAlchemyError) as error:
                why = url.hide_in(str(error.__cause__ or error).partition("\n")[0])
                raise Problem(
                    f"Dagster's storage at {url} cannot be opened ({why}): check that PostgreSQL "
                    "runs, that the database exists, and ML_ASSETS_DAGSTER_URL; then run it again"
                ) from None

    def tidy(self) -> None:
        """Update Dagster's records: cancel runs whose process is gone, and log partitions that Dagster lacks."""
        from ml_assets.cli.abandoned import end_abandoned
        from ml_assets.components.sensors.reconcile import reconcile, tables_of
        from ml_assets.data.tables.environments.environment import inherited_by
        from ml_assets.data.tables.reader import TableReader

        end_abandoned(self.settings, self.instance)
        reconcile(
            self.instance,
            TableReader.at(self.platform.lake, "main"),
            self.platform.ledger,
            tables_of(self.defs.resolve_asset_graph()),
            inherited_by(self.platform),
        )

    @cached_property
    def _tree(self) -> "dg.ComponentTree":
        """All declared components: their files are read once a command."""
        import dagster as dg

        return dg.ComponentTree.for_project(ROOT)

    def components(self, of_type: type[Component]) -> Sequence[Component]:
        """Return the declared components of one type."""
        from ml_assets.components.declarations import in_one_line

        with in_one_line():
            return self._tree.get_all_components(of_type)

    def component(self, of_type: type[Component], name: str) -> Component:
        """Return the component of this name. `Problem` names the nearest declared name, or all."""
        found = {component.spec.name: component for component in self.components(of_type)}
        if name not in found:
            raise Problem(f"no {of_type.__name__} is named '{name}'{did_you_mean(name, found)}")
        return found[name]

    def tables(self) -> "dict[str, TableSpec]":
        """Return the declared datasets and feature tables by the name of their table."""
        from ml_assets.components.dataset import Dataset
        from ml_assets.components.feature_table import FeatureTable

        specs = [one.table for kind in (Dataset, FeatureTable) for one in self.components(kind)]
        return {spec.table: spec for spec in specs}

    def table(self, name: str) -> "TableSpec":
        """Return the declared table of this name. `Problem` names the nearest declared name, or all."""
        found = self.tables()
        if name not in found:
            raise Problem(f"no table is named '{name}'{did_you_mean(name, found)}")
        return found[name]


def _is_made(settings: Settings) -> bool:
    """True if the home holds anything that a command may read: a lake, a ledger, or Dagster's storage."""
    return any(
        one.exists() for one in (settings.lake_folder, settings.dagster_home, settings.own_home / "ledger.db")
    )


def prepare_home(settings: Settings) -> None:
    """Create the folders, write Dagster's settings file and set DAGSTER_HOME. Report a DAGSTER_HOME that is ignored.

    Raises `Problem` if the home cannot be written.
    """
    _require_environment(settings)
    _make_home(settings)
    _point_dagster(settings)


def _point_dagster(settings: Settings) -> None:
    given = os.environ.get("DAGSTER_HOME")
    if given and Path(given).resolve() != settings.dagster_home.resolve():
        say_aside(
            f"DAGSTER_HOME={given} is not used: Dagster's history is in {settings.dagster_home} "
            "(ML_ASSETS_HOME moves it)"
        )
    os.environ["DAGSTER_HOME"] = str(settings.dagster_home)
    os.environ.setdefault("DAGSTER_EVENT_BATCH_SIZE", EVENT_BATCH)


def _require_environment(settings: Settings) -> None:
    """Raise `EnvironmentMissing` if the settings name an environment that does not exist, before anything is created
    for it."""
    if settings.env is not None:
        from resources.lake.environments import read_environment

        read_environment(settings.home, settings.env)


def _make_home(settings: Settings) -> None:
    try:
        settings.dagster_home.mkdir(parents=True, exist_ok=True)
        for folder in (settings.home, settings.dagster_home):
            with tempfile.TemporaryFile(dir=folder):
                pass  # permissions are not enough: the file system may be full or read-only
        write_dagster_settings(settings)
    except OSError as error:
        raise Problem(
            f"cannot write to the home {settings.home} ({error.strerror or error}): fix its permissions, free disk "
            "space, or set ML_ASSETS_HOME to another folder"
        ) from error


def say_aside(text: str) -> None:
    """Print a line to standard error."""
    click.echo(in_terminal(text), err=True)


def say(text: str = "") -> None:
    """Print a line to standard output."""
    click.echo(in_terminal(text))
