"""`dagster.yaml` in Dagster's home, written from the settings that `ml_assets.dagster_host.instance` holds.

Here: the text of the file, and the conditions under which it is written again. Not here: the settings themselves, and
opening the instance (`project`).
"""

import hashlib

import yaml

from ml_assets.cli.problems import Problem
from ml_assets.dagster_host.instance import on_this_machine
from resources.files import whole_file
from resources.settings import Settings

_WRITTEN = "# Written by ml-assets; once changed by hand it is left alone. "


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
