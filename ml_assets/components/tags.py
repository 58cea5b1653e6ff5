"""Tags of runs and materializations: Dagster's and the platform's.

Not here: keys of metadata, which are defined beside the code that writes them.
"""

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
"""First and last partition of a run over a range."""
PARTITION = "dagster/partition"
"""Partition of a run over a single partition."""
ROOT_RUN = "dagster/root_run_id"
"""Tag of a run that repeats another one: the first run of all tries."""
DATA_VERSION = "dagster/data_version"
"""Identity of a materialization's content."""
ASKED_BY = "ml_assets/asked_by"
"""Tag of runs that the failed-upstream sensor requested: the refused run. The sensor ignores failures of such runs."""
RETRAINS = "ml_assets/retraining"
"""Tag of runs that live performance requested: the reason."""
DEPRECATED = "ml_assets/deprecated"
"""Tag of the asset of a deprecated table."""
RESOURCES = "ml_assets/resources"
"""Changes of the pipeline's resources for this launch, `memory=8Gi,nodes=2` or a JSON object."""
