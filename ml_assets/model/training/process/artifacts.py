"""Object store of a training process, from the environment that the launcher set."""

import logging
import os
from pathlib import Path

from resources.artifacts import Artifacts, artifacts_of

# aiobotocore logs the origin of the credentials at each start.
logging.getLogger("aiobotocore").setLevel(logging.WARNING)


def open_artifacts(url: str, cache: Path, patience_seconds: float = 60.0) -> Artifacts:
    """Open the store at `url` with the endpoint and credentials from the environment."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return artifacts_of(url, cache, endpoint, patience_seconds)
