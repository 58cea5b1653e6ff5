"""Definitions of `events_prune.py`: datasets, and a feature table of each, with daily partitions and a check.

A run covers a range and logs its materializations as the project's tables do, without rows. The variable MANY_TABLES
holds the number of tables and of their partitions.
"""

import hashlib
import os
import warnings
from collections.abc import Iterator
from datetime import date, timedelta

import dagster as dg

from ml_assets.components.metadata import DATA_VERSION
from ml_assets.dagster_host.steps import log_materializations, log_output

NUMBERS = "MANY_TABLES"
TABLES, DAYS = (int(number) for number in os.environ.get(NUMBERS, "100,1000").split(","))
FIRST = date(2013, 1, 1)
PARTITIONS = dg.DailyPartitionsDefinition(str(FIRST), end_date=str(FIRST + timedelta(days=DAYS)))


warnings.simplefilter("ignore", dg.BetaWarning)


def _table(name: str, inputs: list[dg.AssetKey]) -> dg.AssetsDefinition:
    @dg.asset(
        name=name,
        partitions_def=PARTITIONS,
        deps=inputs,
        backfill_policy=dg.BackfillPolicy.single_run(),
        output_required=False,
        check_specs=[dg.AssetCheckSpec("contract", asset=name)],
        code_version="1",
    )
    def made(context: dg.AssetExecutionContext) -> Iterator[dg.AssetMaterialization | dg.AssetCheckResult]:
        commit = hashlib.sha256(context.run.run_id.encode()).hexdigest()
        events = [
            dg.AssetMaterialization(
                context.asset_key,
                partition=key,
                metadata={"dagster/partition_row_count": 1000, "verdict": "passed", "lake/commit": commit},
                tags={DATA_VERSION: hashlib.sha256(f"{commit}{key}".encode()).hexdigest()},
            )
            for key in context.partition_keys
        ]
        log_materializations(context, events[:-1])
        yield events[-1]
        yield dg.AssetCheckResult(passed=True, check_name="contract", description=f"{len(events)} partitions")
        log_output(context)

    return made


_DATASETS = [_table(f"dataset_{number:03}", []) for number in range(TABLES // 2)]
_FEATURES = [_table(f"features_{number:03}", [one.key]) for number, one in enumerate(_DATASETS)]
defs = dg.Definitions(assets=[*_DATASETS, *_FEATURES])
