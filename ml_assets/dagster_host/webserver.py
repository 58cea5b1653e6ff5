"""Dagster's webserver with reports and the pages of partitions beside its own pages, read-only.

`python -m ml_assets.dagster_host.webserver` takes the options of `dagster-webserver`. Browsers refuse `file://` links
on a page, and object storage that only the cluster reaches has no link to sign. So this server fetches a report from
the artifacts when someone opens it. Not here: the content of a report.

Private area: the application behind `dagster-webserver`, and its pages of partitions. The command publishes no way to
add a route, to bound connections and headers, or to page partitions from their own end.
"""

from datetime import UTC, datetime
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

import uvicorn
from dagster import PaginatedResults, TimeWindowPartitionsDefinition
from dagster._core.definitions.partitions.context import PartitionLoadingContext
from dagster_webserver import cli
from dagster_webserver.app import create_app_from_workspace_process_context
from starlette.applications import Starlette
from starlette.routing import Route

from ml_assets.foundation.links import TABLES
from ml_assets.pages.served import SERVED, serving, serving_tables
from resources.platform import Platform
from resources.settings import Settings
from resources.web.bounded_uvicorn import bounded_options

PATIENCE_SECONDS = 5.0
"""Wait for a server of the platform. Short, because a person looks at an empty tab meanwhile."""
_PAGED = TimeWindowPartitionsDefinition.get_paginated_partition_keys


def main() -> None:
    """Run `dagster-webserver` with reports."""
    page_backwards_from_the_end()  # otherwise plots are empty for data that has ended
    # Dagster offers no other place to add a route.
    cli.create_app_from_workspace_process_context = with_reports  # pyright: ignore[reportPrivateImportUsage]
    # Nor a place to bound connections and headers.
    cli.uvicorn = SimpleNamespace(run=partial(uvicorn.run, **bounded_options()))  # pyright: ignore[reportAttributeAccessIssue, reportPrivateImportUsage]
    cli.main()


def with_reports(context: Any, path_prefix: str = "", *others: Any, **options: Any) -> Starlette:
    """Return Dagster's application with the routes of the reports before its own routes, below the same prefix."""
    app = create_app_from_workspace_process_context(context, path_prefix, *others, **options)
    platform = Platform(Settings(), PATIENCE_SECONDS)
    handlers = {root: serving(platform.artifacts, root) for root in SERVED} | {
        TABLES: serving_tables(platform)
    }
    for root, handler in handlers.items():
        app.router.routes.insert(0, Route(f"{path_prefix}/{root}/{{path:path}}", handler))
    return app


@wraps(_PAGED)
def _paged_from_the_end(
    self: TimeWindowPartitionsDefinition,
    context: PartitionLoadingContext,
    limit: int,
    ascending: bool,
    cursor: str | None = None,
) -> PaginatedResults[str]:
    end = self.end_timestamp
    if end is not None and not ascending and end < context.effective_dt.timestamp():
        context = context.updated(datetime.fromtimestamp(end, UTC), context.dynamic_partitions_store)
    return _PAGED(self, context, limit, ascending, cursor)


def page_backwards_from_the_end() -> None:
    """Patch Dagster in this process so that its newest partitions are partitions that exist.

    Dagster 1.13.27 pages backwards from now, even if the partitions ended earlier. The "Plots" of an asset request the
    newest 120 partitions. For a model whose data ended 120 days ago these do not exist, and the plots were empty.
    """
    TimeWindowPartitionsDefinition.get_paginated_partition_keys = _paged_from_the_end


if __name__ == "__main__":
    main()
