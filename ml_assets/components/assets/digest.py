"""Asset `digest`: what happened on a UTC day, as a page and as one message, made each night.

Here: Dagster's side. Not here: the facts and their page (`pages.digest`).
"""

from datetime import date
from typing import Any

import dagster as dg

from ml_assets.components.metadata import RELEASE, is_table
from ml_assets.components.sensors.ended_runs import claim, ended_launches, told
from ml_assets.dagster_host.defs_folder import TimeWindowFreshnessPolicy
from ml_assets.foundation.links import DIGESTS, report_page
from ml_assets.pages.digest import Digest, Subjects, bounds_of, digest_of, digest_page, subjects_from
from resources.platform import Platform

FIRST_DAY = "2026-11-01"
MINUTES_AFTER_MIDNIGHT = 15
"""The day has ended, and its last runs have had time to record their end."""


def declared_subjects(defs: dg.Definitions) -> Subjects:
    """Return the subjects of a digest that `defs` declare."""
    specs = [
        spec
        for asset in defs.assets or ()
        if isinstance(asset, dg.AssetsDefinition | dg.AssetSpec)
        for spec in ([asset] if isinstance(asset, dg.AssetSpec) else asset.specs)
    ]
    return subjects_from(
        releases={one.key.path[0]: one.metadata[RELEASE] for one in specs if RELEASE in one.metadata},
        tables=[one.key.to_user_string() for one in specs if is_table(one.key)],
        # The newest version of a model is its asset `registered_model`.
        fresh_within={
            one.key.to_user_string().removesuffix(
                "/registered_model"
            ): one.freshness_policy.fail_window.to_timedelta()
            for one in specs
            if isinstance(one.freshness_policy, TimeWindowFreshnessPolicy)
        },
    )


def nightly_digest(pipelines: dg.Definitions) -> dg.Definitions:
    """Return the asset with its schedule, about all that `pipelines` declare."""
    subjects = declared_subjects(pipelines)

    @dg.asset(
        partitions_def=dg.DailyPartitionsDefinition(FIRST_DAY),
        description="What happened on a UTC day: failed, trained, evaluated, decided, waiting, late, spent; each with "
        "the next command.",
        group_name="platform",
    )
    def digest(
        context: dg.AssetExecutionContext, platform: dg.ResourceParam[Platform]
    ) -> dg.MaterializeResult[Any]:
        day = date.fromisoformat(context.partition_key)
        found = digest_of(platform, subjects, day, ended_launches(context.instance, *bounds_of(day)))
        page = digest_page(found)
        name = f"{DIGESTS}/{day}"
        (platform.artifacts.folder(name) / "report.html").write_text(page.to_html(), encoding="utf-8")
        address = platform.artifacts.push(name)
        return dg.MaterializeResult(
            metadata={
                "digest": dg.MetadataValue.md(page.to_markdown()),
                "report": dg.MetadataValue.url(report_page(platform.settings.ui_url, name)),
                "report_file": f"{address}/report.html",
                "told": _tell(platform, context.instance, found),
            }
        )

    job = dg.define_asset_job("nightly_digest", [digest], description="Makes the digest of a UTC day.")
    schedule = dg.build_schedule_from_partitioned_job(
        job,
        hour_of_day=0,
        minute_of_hour=MINUTES_AFTER_MIDNIGHT,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Makes the digest of the day that has ended (UTC).",
    )
    return dg.Definitions(assets=[digest], jobs=[job], schedules=[schedule])


def _tell(platform: Platform, instance: dg.DagsterInstance, found: Digest) -> str:
    """Send the digest once for each day; return who was told."""
    if platform.settings.webhook is not None and not claim(instance, f"digest/{found.day}"):
        return "nobody: the digest of this day was sent before"
    return told(platform, found.to_json())
