"""Dagster's webserver with the reports of evaluations and studies beside its pages, read-only.

`python -m ml_assets.webserver` takes the options of `dagster-webserver`. Browsers refuse `file://` links on a page, and
object storage that only the cluster reaches has no link to sign. So this server fetches a report from the artifacts
when someone opens it. Not here: the content of a report.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dagster_webserver import cli
from dagster_webserver.app import create_app_from_workspace_process_context
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ml_assets.dagster_partitions import page_backwards_from_the_end
from ml_assets.pipeline.links import REPORTS, STUDIES
from resources.artifacts import ArtifactMissing, Artifacts, ArtifactsError, relative
from resources.platform import Platform
from resources.settings import Settings

_HTML, _JSON = "text/html", "application/json"
SERVED = {
    REPORTS: {
        "report.html": _HTML,
        "model_card.html": _HTML,
        "model_card.md": "text/markdown",
        "evaluation.json": _JSON,
    },
    STUDIES: {"report.html": _HTML, "study.json": _JSON},
}
"""Folder of the artifacts → files in it, at any depth, that the server serves, with their media types."""
HEADERS = {
    # A report contains its own styles and pictures. No script of it may run with the rights of Dagster's pages.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
PATIENCE_SECONDS = 5.0
"""Wait for the artifacts' server. Short, because a person looks at an empty tab meanwhile."""


def main() -> None:
    """Run `dagster-webserver` with reports."""
    page_backwards_from_the_end()  # otherwise plots are empty for data that has ended
    # Dagster offers no other place to add a route.
    cli.create_app_from_workspace_process_context = with_reports  # pyright: ignore[reportPrivateImportUsage]
    cli.main()


def with_reports(context: Any, path_prefix: str = "", *others: Any, **options: Any) -> Starlette:
    """Return Dagster's application with the routes of the reports before its own routes, below the same prefix."""
    app = create_app_from_workspace_process_context(context, path_prefix, *others, **options)
    artifacts = Platform(Settings(), PATIENCE_SECONDS).artifacts
    for root in SERVED:
        app.router.routes.insert(0, Route(f"{path_prefix}/{root}/{{path:path}}", serving(artifacts, root)))
    return app


def serving(artifacts: Artifacts, root: str) -> Callable[[Request], Response]:
    """Return the handler of GET below `root`: 404 for paths other than files of a report, 502 if the storage fails."""
    files = SERVED[root]

    def serve(request: Request) -> Response:
        folder, _, file = request.path_params["path"].rpartition("/")
        name = f"{root}/{folder}"
        try:
            relative(name)
        except ArtifactsError:
            file = ""
        if file not in files:
            return _told(
                404,
                "no such report: report addresses have the form /reports/MODEL/PARTITION/EVALUATION/report.html "
                "or /studies/ENVIRONMENT/MODEL/STUDY/report.html",
            )
        try:
            with tempfile.TemporaryDirectory(prefix="ml-assets-") as fetched:
                artifacts.fetch(name, file, target := Path(fetched) / file)
                return Response(target.read_bytes(), media_type=files[file], headers=HEADERS)
        except ArtifactMissing as error:
            return _told(404, f"{error}")
        except ArtifactsError as error:
            return _told(502, f"{error}")

    return serve


def _told(status: int, why: str) -> Response:
    return PlainTextResponse(f"{why}\n", status, HEADERS)


if __name__ == "__main__":
    main()
