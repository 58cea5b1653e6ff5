"""Typed Python client of the REST API, generated from its OpenAPI document.

    python -m deployment.client DOCUMENT    write the OpenAPI document of this version to a file

`deployment/client.sh` calls it and then the generator, which has an environment of its own. Not here: the client
(`clients/python`).
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from ml_assets.context import Context
from ml_assets.context.home import make_home
from ml_assets.extras.api.app import api_app
from resources.settings import Settings

CLIENT = Path(__file__).parents[1] / "clients" / "python"
DOCUMENT = "openapi.json"


def document_text() -> str:
    """Return the OpenAPI document of the API as the text that is kept beside the client."""
    with tempfile.TemporaryDirectory(prefix="ml-assets-") as home:
        settings = Settings(home=Path(home))
        make_home(settings)
        document: dict[str, Any] = api_app(
            Context.open(settings, writes=True), "http://127.0.0.1:1"
        ).openapi()
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document_text())
