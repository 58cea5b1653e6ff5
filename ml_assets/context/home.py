"""Home of a context: its settings, its folders, and Dagster's settings file in it.

Not here: the meaning of settings (`resources.settings`), and the values in `dagster.yaml`
(`ml_assets.dagster_host.instance`).
"""

import atexit
import hashlib
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_settings import SettingsError

from ml_assets.context.errors import HomeRefused
from ml_assets.dagster_host.instance import EVENT_BATCH, on_this_machine
from resources.files import whole_file
from resources.lake.environments import read_environment
from resources.settings import KubernetesSettings, Settings

_VARIABLES = {
    (section.__name__, field): f"{section.model_config.get('env_prefix', '')}{field.upper()}"
    for section in (Settings, KubernetesSettings)
    for field in section.model_fields
}
_READ_ELSEWHERE = {"ML_ASSETS_TRACEBACK", "ML_ASSETS_BUILD_CACHE", "ML_ASSETS_SERVER_OF"}
_WRITTEN = "# Written by ml-assets; once changed by hand it is left alone. "


def read_settings(**given: Any) -> Settings:
    """Return the settings of the environment; `given` are fields to use instead, such as `env=None` for main.

    `HomeRefused` names each variable with an illegal value. It does not repeat the value, which may be a secret.
    """
    try:
        return Settings(**given)
    except ValidationError as error:
        wrong = [f"{_VARIABLES[error.title, str(one['loc'][0])]}: {one['msg']}" for one in error.errors()]
    except SettingsError as error:  # it names the field only in its sentence
        wrong = [
            f"{name}: not valid JSON" for (_, field), name in _VARIABLES.items() if f'"{field}"' in str(error)
        ]
    raise HomeRefused("; ".join(wrong) + ". resources/settings.py describes each setting")


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


def make_home(settings: Settings) -> None:
    """Create the folders, and write Dagster's settings file.

    Raises `EnvironmentMissing`, and `HomeRefused` if the home cannot be written.
    """
    _require_environment(settings)
    _make_folders(settings)


def prepare_to_read(settings: Settings) -> Settings:
    """Return the settings of a context that changes nothing.

    Lake, ledger and Dagster create their files when they are first opened. If the home has none yet, they are created
    in a temporary folder, which is as empty as the home. Raises `EnvironmentMissing`, and `HomeRefused` for a file.
    """
    _require_environment(settings)
    if settings.home.exists() and not settings.home.is_dir():
        raise HomeRefused(f"the home {settings.home} is a file: name a folder")
    if not _is_made(settings):
        settings = settings.model_copy(update={"home": _empty_home()})
    _make_folders(settings)
    return settings


def _empty_home() -> Path:
    """Return an empty folder of one context, deleted at the end of the process: parts of a context may outlive it.

    Not shared: the first read of a ledger makes its tables, and the next context must not find them.
    """
    folder = tempfile.TemporaryDirectory(prefix="ml-assets-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    return Path(folder.name)


def why_ignored(settings: Settings) -> str:
    """Return a sentence about a DAGSTER_HOME that is not used; empty if none is set, or if it is the one used."""
    given = os.environ.get("DAGSTER_HOME")
    if not given or Path(given).resolve() == settings.dagster_home.resolve():
        return ""
    return (
        f"DAGSTER_HOME={given} is not used: Dagster's history is in {settings.dagster_home} "
        "(ML_ASSETS_HOME moves it)"
    )


def _is_made(settings: Settings) -> bool:
    """True if the home holds anything to read: a lake, a ledger, Dagster's storage, or last answers of servers."""
    places = (
        settings.lake_folder,
        settings.dagster_home,
        settings.own_home / "ledger.db",
        settings.cache_folder,
    )
    return any(one.exists() for one in places)


def point_dagster(settings: Settings) -> None:
    """Set the variables that Dagster and its helper processes read, for a process that works in one home."""
    os.environ["DAGSTER_HOME"] = str(settings.dagster_home)
    os.environ.setdefault("DAGSTER_EVENT_BATCH_SIZE", EVENT_BATCH)


@contextmanager
def pointing_dagster(settings: Settings) -> Generator[None]:
    """Do as `point_dagster` during the block: a notebook may have contexts of several homes."""
    before = {name: os.environ.get(name) for name in ("DAGSTER_HOME", "DAGSTER_EVENT_BATCH_SIZE")}
    point_dagster(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _require_environment(settings: Settings) -> None:
    """Raise `EnvironmentMissing` before anything is created for an environment that does not exist."""
    if settings.env is not None:
        read_environment(settings.home, settings.env)


def _make_folders(settings: Settings) -> None:
    try:
        settings.dagster_home.mkdir(parents=True, exist_ok=True)
        for folder in (settings.home, settings.dagster_home):
            with tempfile.TemporaryFile(dir=folder):
                pass  # permissions are not enough: the file system may be full or read-only
        write_dagster_settings(settings)
    except OSError as error:
        raise HomeRefused(
            f"cannot write to the home {settings.home} ({error.strerror or error}): fix its permissions, free disk "
            "space, or set ML_ASSETS_HOME to another folder"
        ) from error


def write_dagster_settings(settings: Settings) -> None:
    """Write `dagster.yaml` from the settings. A file that a person changed stays as it is.

    Raises `HomeRefused` if such a file does not use the server that the settings name.
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
        raise HomeRefused(
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
