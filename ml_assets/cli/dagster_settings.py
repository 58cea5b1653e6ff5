"""Dagster's `dagster.yaml` in its home, made from the templates of `deployment/` and the project's settings.

Here: the content of the file, and the conditions under which it is written again. Not here: opening the instance
(`project`).
"""

import hashlib
import json
from string import Template

from ml_assets.checkout import ROOT
from ml_assets.cli.problems import Problem
from resources.files import whole_file
from resources.settings import Settings

_WRITTEN = "# Written by ml-assets; once changed by hand it is left alone. "
_COPIED = ("873493cc89a8a266", "9fc5f744a3c3fc68")
"""Digests of the file that the first versions wrote."""


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
            f"{path} was changed by hand and does not use ML_ASSETS_DAGSTER_URL: add the storage section of "
            "deployment/dagster-servers.yaml to it, or remove the file and it is written anew"
        )


def dagster_settings(settings: Settings) -> str:
    """Return the text of `dagster.yaml`, without secrets."""
    parts = [(ROOT / "deployment" / "dagster.yaml").read_text()]
    storage, step_logs = (ROOT / "deployment" / "dagster-servers.yaml").read_text().split("\n---\n")
    if settings.dagster_url is not None:
        parts.append(storage)
    else:
        embedded = Template((ROOT / "deployment" / "dagster-embedded.yaml").read_text())
        parts.append(embedded.substitute(FOLDER=json.dumps(str(settings.dagster_home))))
    if settings.artifacts_url is not None and settings.artifacts_url.startswith("s3://"):
        bucket, _, prefix = settings.artifacts_url.removeprefix("s3://").strip("/").partition("/")
        values = {
            "BUCKET": bucket,
            "PREFIX": f"{prefix}/step-logs".strip("/"),
            "FOLDER": str(settings.dagster_home / "step-logs"),
            "ENDPOINT": str(settings.s3_endpoint_url) if settings.s3_endpoint_url else "",
        }
        kept = [
            line for line in step_logs.splitlines() if settings.s3_endpoint_url or "$ENDPOINT" not in line
        ]
        parts.append(
            Template("\n".join(kept)).substitute(
                {name: json.dumps(value) for name, value in values.items() if value}
            )
        )
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def _is_ours(text: str) -> bool:
    """True if nobody changed the file since ml-assets wrote it. Early versions copied the template unchanged."""
    first, _, body = text.partition("\n")
    if first.startswith(_WRITTEN):
        return first.removeprefix(_WRITTEN) == _digest(body)
    return _digest(text) in _COPIED


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]
