"""Tags of runs and materializations: each name once, Dagster's and our own.

Not here: keys of metadata, which stand beside what they describe.
"""

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
"""First and last partition of a run over a range."""
PARTITION = "dagster/partition"
"""Partition of a run over one."""
DATA_VERSION = "dagster/data_version"
"""Identity of a materialization's content."""
ASKED_BY = "ml_assets/asked_by"
"""On runs the failed-upstream sensor asked for: the run that was refused. They never ask again themselves."""
RESOURCES = "ml_assets/resources"
"""Changes of the pipeline's resources for this launch, `memory=8Gi,nodes=2` or a JSON object."""
