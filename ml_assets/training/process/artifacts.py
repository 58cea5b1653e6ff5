"""Object store of a training process, by the environment that its launcher gave it."""

import logging
import os
from pathlib import Path

from resources.artifacts import Artifacts, artifacts_of

# At each start it says where the credentials came from.
logging.getLogger("aiobotocore").setLevel(logging.WARNING)


def open_artifacts(url: str, cache: Path, patience_seconds: float = 60.0) -> Artifacts:
    """The store at `url`, with the address of the server and the credentials that the process was given."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return artifacts_of(url, cache, endpoint, patience_seconds)
