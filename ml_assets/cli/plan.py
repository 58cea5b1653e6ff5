"""`ml-assets plan`: what materializing a model would run, and why."""

from collections.abc import Sequence

import click

from ml_assets.cli.project import Project, say


@click.command("plan", short_help="What materializing a model would run, and why.")
@click.argument("model")
@click.argument("partition")
def command(model: str, partition: str) -> None:
    """Say what the window of MODEL at PARTITION lacks, what would be built, and what would run; change nothing."""
    import dagster as dg
    from dagster._core.definitions.events import AssetKeyPartitionKey

    from ml_assets.components.sensors import with_missing_ancestors
    from ml_assets.components.training_pipeline import TrainingPipeline, stage_key
    from ml_assets.tables.guard import judge_window
    from ml_assets.tables.reader import TableReader

    project = Project.here()
    spec = project.component(TrainingPipeline, model).spec
    spec.partitions.as_cadence.bounds(partition)  # refuses what is no key of this model
    graph = project.defs.resolve_asset_graph()
    reader = TableReader.at(project.platform.lake, "main")
    table = spec.features.table
    features = dg.AssetKey(table.split("/"))
    training_set = stage_key(spec, "training_set")
    window = sorted(
        parent.partition_key or ""
        for parent in graph.get_parents_partitions(training_set, partition).parent_partitions
    )
    verdict = judge_window(reader, project.platform.ledger, table, window)
    if not window:
        say(f"{model} {partition}: no partition of {table} lies in its window")
        raise SystemExit(1)
    say(
        f"{model} {partition} reads {len(window)} partitions of {table}, {window[0]} to {window[-1]}, "
        f"at main {reader.commit_id[:12]}"
    )
    if len(window) < spec.window.total:
        say(f"  too early: the window needs {spec.window.total} partitions; it would refuse")
    for key, why in verdict.rejected.items():
        say(f"  rejected  {table} {key}: {why.splitlines()[0]}")
    for key, why in verdict.stale.items():
        say(f"  stale     {table} {key}: {why}")
    missing = {AssetKeyPartitionKey(features, key) for key in verdict.missing}
    to_build = with_missing_ancestors(graph, reader, missing)
    for name in sorted({each.asset_key.to_user_string() for each in to_build}):
        keys = sorted(
            each.partition_key or "all" for each in to_build if each.asset_key.to_user_string() == name
        )
        say(f"  missing   {name}: {_spans(keys, graph.get(dg.AssetKey(name.split('/'))))}")
    done = project.instance.get_materialized_partitions(stage_key(spec, "evaluation"))
    say()
    if verdict.rejected:
        say(
            "It would refuse: mend the sources of what is rejected, or `ml-assets accept TABLE PARTITION --reason '…'`."
        )
    elif to_build:
        say(
            "It would refuse; with `ml-assets ui` running, the sensor build_missing_upstream then builds what is"
        )
        say("missing, in order, and the model after it. By hand, in this order:")
        say(
            f"  ml-assets launch TABLE FIRST..LAST   for each table above, then   ml-assets launch {model} {partition}"
        )
    elif partition in done:
        say(
            "It has been trained and evaluated before; an unchanged window finds the finished training and repeats only"
        )
        say(f"snapshot and evaluation. Run it: ml-assets launch {model} {partition}")
    else:
        how = f"{spec.training.workers} processes, up to {spec.training.epochs} epochs"
        say(f"It would run validate_inputs → snapshot → train ({how}) → evaluate → register.")
        say(f"Run it: ml-assets launch {model} {partition}")


def _spans(keys: Sequence[str], node) -> str:
    """`2013-01-01..2013-01-05 (5)`, several spans joined."""
    if node.partitions_def is None:
        return "the whole table"
    order = {key: i for i, key in enumerate(node.partitions_def.get_partition_keys())}
    spans: list[list[str]] = []
    for key in keys:
        if spans and order[key] == order[spans[-1][-1]] + 1:
            spans[-1].append(key)
        else:
            spans.append([key])
    return ", ".join(_span(span) for span in spans)


def _span(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]}..{keys[-1]} ({len(keys)})"
