"""Histories of `pruned_assets` for tests: runs, and Dagster's answers about them."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from benchmarks.claims.data._asset_answers import asked
from ml_assets.context.home import write_dagster_settings
from ml_assets_tests.extras.pruned_assets import KEYS, defs
from resources.settings import Settings

GRAPH = defs.resolve_asset_graph()


@contextmanager
def opened(settings: Settings) -> Iterator[dg.DagsterInstance]:
    """Yield Dagster's instance of `settings`."""
    settings.dagster_home.mkdir(parents=True, exist_ok=True)
    write_dagster_settings(settings)
    with dg.DagsterInstance.from_config(str(settings.dagster_home)) as instance:
        yield instance


def run(instance: dg.DagsterInstance, asset: str, partition: str | None = None, **tags: str) -> None:
    """Materialize an asset."""
    defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        asset_selection=[dg.AssetKey(asset)],
        partition_key=partition,
        tags=tags,
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        raise_on_error=False,
    )


def short_history(instance: dg.DagsterInstance) -> None:
    """Build a day twice, let another one fail, and correct the first, which its features do not follow."""
    first, second = KEYS[:2]
    for content in ("a", "b"):
        run(instance, "raw", first, content=content)
        run(instance, "features", first, **({"bad": "yes"} if content == "a" else {}))
    run(instance, "raw", second, fails="yes")
    run(instance, "raw", first, content="c")


def answers(instance: dg.DagsterInstance) -> str:
    """Return what Dagster's pages show of all assets."""
    with asked(instance, "ml_assets_tests.extras.pruned_assets", "defs") as graphql:
        return graphql.everything()


def without_stored_statuses(instance: dg.DagsterInstance) -> dg.DagsterInstance:
    """Let Dagster count the partitions from the events that are left."""
    for asset in GRAPH.get_all_asset_keys():
        instance.event_log_storage.wipe_asset_cached_status(asset)
    return instance
