"""Environments for people: the record of each, and the names that it has in the lake.

An environment is a branch of the lake in place of main, and a folder of the home with a ledger, tracking and a Dagster
home of its own. Here: its record. Not here: creating, comparing and merging (`ml_assets.data.tables.environments`),
and the view of the lake (`resources.lake.environment_view`).
"""

import json
import re
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from resources.files import write_whole
from resources.settings import ENV_NAME

_RECORD = "environment.json"
_FOLDER = "environments"


class EnvironmentMissing(Exception):
    """The home has no environment of this name."""


class EnvironmentNameRefused(ValueError):
    """A name of an environment has other characters than small letters, digits and _, or more than 40 of them, or is
    `main`."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Record of an environment."""

    name: str
    author: str
    """Person who created it."""
    created_at: datetime
    """UTC."""
    origin: str
    """Commit of main from which it was created."""
    base: str
    """Commit with which its branch is compared: `origin`, and after a merge the head that was merged."""


def check_environment_name(name: str) -> str:
    """Return `name`. Raises `EnvironmentNameRefused`, which proposes a name."""
    if name == "main":
        raise EnvironmentNameRefused(
            "'main' cannot name an environment: it names what everyone works on, and texts about the two could not be "
            "told apart. Take another name, such as your own"
        )
    if re.fullmatch(ENV_NAME, name) is None or len(name) > 40:
        proposed = re.sub(r"\W+", "_", name.lower(), flags=re.ASCII).strip("_")[:40]
        instead = f": {proposed!r} is possible" if proposed else ""
        raise EnvironmentNameRefused(
            f"{name!r} cannot name an environment: up to 40 small letters, digits and _{instead}"
        )
    return name


def environment_folder(home: Path, name: str) -> Path:
    """Return the folder of an environment's ledger, tracking and Dagster home."""
    return home / _FOLDER / check_environment_name(name)


def environments(home: Path) -> list[Environment]:
    """Return the environments of a home, oldest first."""
    records = (home / _FOLDER).glob(f"*/{_RECORD}")
    return sorted((_read(record) for record in records), key=lambda one: (one.created_at, one.name))


def read_environment(home: Path, name: str) -> Environment:
    """Return an environment. Raises `EnvironmentMissing`."""
    record = environment_folder(home, name) / _RECORD
    try:
        return _read(record)
    except FileNotFoundError:
        known = ", ".join(one.name for one in environments(home))
        raise EnvironmentMissing(
            f"no environment is named {name!r} in {home} (there are: {known or 'none'}). "
            f"To create it: ml-assets env create {name}. To work on main: unset ML_ASSETS_ENV"
        ) from None


def write_environment(folder: Path, environment: Environment) -> None:
    """Write the record of an environment to its folder, which exists."""
    facts = {**asdict(environment), "created_at": environment.created_at.isoformat()}
    write_whole(folder / _RECORD, lambda path: path.write_text(json.dumps(facts, indent=1)))


def _read(record: Path) -> Environment:
    facts = json.loads(record.read_text())
    created_at = datetime.fromisoformat(facts.pop("created_at"))
    return Environment(**facts, created_at=created_at)
