"""Project for the commands: settings from the environment, the home, platform, definitions, declared components.

Not here: the meaning of settings (`resources.settings`), and the values in `dagster.yaml`
(`ml_assets.dagster_host.instance`).
"""

import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import yaml
from pydantic import ValidationError
from pydantic_settings import SettingsError

from ml_assets.cli.terminal import Problem, say_aside
from ml_assets.dagster_host.instance import EVENT_BATCH, on_this_machine
from ml_assets.foundation.checkout import ROOT
from resources.files import locked, take_lock, whole_file
from resources.platform import Platform
from resources.settings import KubernetesSettings, Settings
from resources.words import did_you_mean

if TYPE_CHECKING:
    import dagster as dg

    from ml_assets.components.base import SpecComponent
    from ml_assets.components.dataset import Dataset
    from ml_assets.components.feature_table import FeatureTable
    from ml_assets.components.specs import FeatureTableSpec, TrainingPipelineSpec
    from ml_assets.data.tables.reader import TableReader
    from ml_assets.data.tables.spec import TableSpec
    from ml_assets.model.release.bundle_store import BundleStore
    from ml_assets.model.release.registry import RegisteredVersion
    from ml_assets.model.release.releases import Releases
    from resources.ledger import Person

Component = TypeVar("Component", bound="SpecComponent")
Found = TypeVar("Found")

_VARIABLES = {
    (section.__name__, field): f"{section.model_config.get('env_prefix', '')}{field.upper()}"
    for section in (Settings, KubernetesSettings)
    for field in section.model_fields
}
_READ_ELSEWHERE = {"ML_ASSETS_TRACEBACK", "ML_ASSETS_BUILD_CACHE", "ML_ASSETS_SERVER_OF"}
_WRITTEN = "# Written by ml-assets; once changed by hand it is left alone. "


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

    @cached_property
    def _tree(self) -> "dg.ComponentTree":
        """All declared components: their files are read once a command."""
        import dagster as dg

        return dg.ComponentTree.for_project(ROOT)

    def _components(self, of_type: type[Component]) -> Sequence[Component]:
        from ml_assets.components.declarations import in_one_line

        with in_one_line():
            return self._tree.get_all_components(of_type)

    def pipelines(self) -> "dict[str, TrainingPipelineSpec]":
        """Return the declared models by name."""
        from ml_assets.components.training_pipeline import TrainingPipeline

        return {one.spec.name: one.spec for one in self._components(TrainingPipeline)}

    def pipeline(self, model: str) -> "TrainingPipelineSpec":
        """Return the declared model of this name. `Problem` names the nearest declared name, or all."""
        return _named("TrainingPipeline", model, self.pipelines())

    def table_components(self) -> "dict[str, Dataset | FeatureTable]":
        """Return the declared datasets and feature tables by the name of their table, such as `features/NAME`."""
        from ml_assets.components import dataset, feature_table

        datasets = {f"datasets/{one.spec.name}": one for one in self._components(dataset.Dataset)}
        features = {f"features/{one.spec.name}": one for one in self._components(feature_table.FeatureTable)}
        return {**datasets, **features}

    def feature_table(self, table: str) -> "FeatureTableSpec":
        """Return the declared feature table `features/NAME`. `Problem` names the nearest declared name, or all."""
        from ml_assets.components.feature_table import FeatureTable

        found = {one.spec.name: one.spec for one in self._components(FeatureTable)}
        return _named("FeatureTable", table.removeprefix("features/"), found)

    def tables(self) -> "dict[str, TableSpec]":
        """Return the declared datasets and feature tables by the name of their table, as they are published."""
        return {name: one.table for name, one in self.table_components().items()}

    def table(self, name: str) -> "TableSpec":
        """Return the declared table of this name. `Problem` names the nearest declared name, or all."""
        return _named("table", name, self.tables())

    def end_abandoned(self) -> None:
        """Mark runs of commands as canceled in Dagster if their process is gone: nobody holds the lock of its file."""
        instance = (
            self.instance
        )  # also without such a file: it creates Dagster's storage, or says why it cannot
        for path in sorted(self.commands_folder.glob("*.run")):
            with suppress(FileNotFoundError), path.open() as file:
                if not take_lock(file.fileno(), waits=False):
                    continue  # its process lives, or another command is ending the run
                run = instance.get_run_by_id(path.stem)
                if run is not None and not run.is_finished:
                    instance.report_run_canceled(run, "The process of this run was killed.")
                path.unlink(missing_ok=True)

    @property
    def commands_folder(self) -> Path:
        """Folder with a file for each run of a command, locked while its process lives."""
        return self.settings.dagster_home / "commands"

    def reader(self, ref: str = "main") -> "TableReader":
        """Return a reader of the lake at the commit that `ref` names now."""
        from ml_assets.data.tables.reader import TableReader

        return TableReader.at(self.platform.lake, ref)

    @property
    def releases(self) -> "Releases":
        """Versions of the models, and the decisions about them."""
        from ml_assets.model.release.releases import releases_of

        return releases_of(self.platform)

    @property
    def bundles(self) -> "BundleStore":
        """Bundles of the versions."""
        from ml_assets.model.release.releases import bundles_of

        return bundles_of(self.platform)

    def registered(self, model: str, number: int | None) -> "RegisteredVersion":
        """Return version `number` of a model; None: the version in production, or else the newest.

        Raises `Problem` for a model that is not declared, or has no version, and `VersionMissing` with the versions.
        """
        from ml_assets.model.steps.record import version_to_show

        version = version_to_show(self.platform, model, number)
        if version is None:
            self.pipeline(model)  # `Problem` with the names there are
            raise Problem(
                f"{model} has no registered version yet. To make one: ml-assets launch {model} DATE"
            )
        return version


def _named(kind: str, name: str, found: Mapping[str, Found]) -> Found:
    if name not in found:
        raise Problem(f"no {kind} is named '{name}'{did_you_mean(name, found)}")
    return found[name]


def read_settings(*, on_main: bool = False) -> Settings:
    """Read the settings from the environment. `on_main`: as if ML_ASSETS_ENV were not set.

    `Problem` names each variable with an illegal value. It does not repeat the value, which may be a secret.
    """
    try:
        return Settings(env=None) if on_main else Settings()
    except ValidationError as error:
        wrong = [f"{_VARIABLES[error.title, str(one['loc'][0])]}: {one['msg']}" for one in error.errors()]
    except SettingsError as error:  # it names the field only in its sentence
        wrong = [
            f"{name}: not valid JSON" for (_, field), name in _VARIABLES.items() if f'"{field}"' in str(error)
        ]
    raise Problem("; ".join(wrong) + ". resources/settings.py describes each setting")


def unknown_variables() -> list[str]:
    """Return a sentence for each variable that looks like a setting but is unknown, with the nearest known variable."""
    known = sorted(_VARIABLES.values())
    said: list[str] = []
    for name in sorted(os.environ):
        if name.startswith("ML_ASSETS_") and name not in (*known, *_READ_ELSEWHERE):
            nearest = get_close_matches(name, known, n=1)
            said.append(
                f"{name} is not a setting: {f'did you mean {nearest[0]}?' if nearest else 'remove it'}"
            )
    return said


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


def write_dagster_settings(settings: Settings) -> None:
    """Write `dagster.yaml` from the settings. A file that a person changed stays as it is.

    Raises `Problem` if such a file does not use the server that the settings name.
    """
    path = settings.dagster_home / "dagster.yaml"
    body = dagster_settings(settings)
    text = f"{_WRITTEN}{_digest(body)}\n{body}"
    found = path.read_text() if path.exists() else None
    if found is None or _is_ours(found):
        if found != text:
            with whole_file(path) as writing:  # an incomplete file would never be replaced
                writing.write_text(text)
    elif settings.dagster_url is not None and "ML_ASSETS_DAGSTER_URL" not in found:
        raise Problem(
            f"{path} was changed by hand and does not use ML_ASSETS_DAGSTER_URL: move the file away, run the command "
            "again, which writes a new one, and repeat your changes there"
        )


def dagster_settings(settings: Settings) -> str:
    """Return the text of `dagster.yaml`, without secrets."""
    return yaml.safe_dump(on_this_machine(settings), sort_keys=False)


def _is_ours(text: str) -> bool:
    """True if nobody changed the file since ml-assets wrote it."""
    first, _, body = text.partition("\n")
    return first == f"{_WRITTEN}{_digest(body)}"


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]
