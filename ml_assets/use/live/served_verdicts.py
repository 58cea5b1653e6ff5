"""Verdicts on served rows against the feature table: partitions that are due, and the record of their comparison.

The verdict of a partition is in the ledger, because the log of requests behind it is deleted some day. It names the
log's files and the features that were compared, so what came later is compared again. Not here: the comparison
(`served_skew`), its policy (`served_policy`), the check (`components.checks.skew`).
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ml_assets.data.tables.landing import MAIN
from ml_assets.data.tables.publish import new_row_of, verdict_of
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.validation.verdict import Verdict
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.use.live.logged_rows import days_at, has_ended, partitions_at
from ml_assets.use.live.served_policy import ServedSkewRule
from ml_assets.use.live.served_skew import served_skew
from ml_assets.use.serving.request_log import days_of
from resources.platform import Platform

NEWEST = 14
"""Newest partitions with requests that are compared. After a longer pause, earlier ones are not."""


@dataclass(frozen=True, kw_only=True)
class Due:
    """Partition whose requests have to be compared."""

    key: str
    content_digest: str
    """Digest of the log's files and of the features."""


def verdicts_of(model: str) -> str:
    """Return the name under which the ledger holds the verdicts of a model."""
    return f"{model}/served_skew"


def due_partitions(
    spec: PipelineSpec, rule: ServedSkewRule, reader: TableReader, platform: Platform, now: datetime
) -> list[Due]:
    """Return the partitions that ended with requests, have features, and no verdict on both; oldest first.

    Keys of requests may name rows of the next partition, so a partition is due again when that one appears. Raises
    `ArtifactsError`, `LakeError` and `LedgerError`.
    """
    files = days_of(platform.artifacts, spec.name)
    asked = {key for day in files for key in partitions_at(spec, day)}
    features = reader.digests(spec.features.table)
    keys = sorted(key for key in asked if key in features and has_ended(spec, key, now))[-NEWEST:]
    newest = platform.ledger.newest_verdicts(verdicts_of(spec.name), keys)
    rules, due = _digest(rule.model_dump(mode="json")), list[Due]()
    for key in keys:
        logged = {str(day): files.get(day, {}) for day in days_at(spec, key)}
        following = min((one for one in features if one > key), default="")
        content = _digest([logged, features[key], features.get(following)])
        known = newest.get(key)
        if known is None or (known.content_digest, known.contract_digest) != (content, rules):
            due.append(Due(key=key, content_digest=content))
    return due


def compare(
    spec: PipelineSpec, rule: ServedSkewRule, reader: TableReader, platform: Platform, due: Due, run_id: str
) -> Verdict:
    """Compare the requests of a partition, and record the verdict.

    Raises `ArtifactsError`, `BundleMissing`, `BundleDamaged` and `LedgerError`.
    """
    found = served_skew(spec, reader, platform, due.key)
    verdict = Verdict.of(
        verdicts_of(spec.name),
        due.key,
        rule.findings(found, spec.features.table),
        rows=sum(one.rows for one in found),
        content_digest=due.content_digest,
        contract_digest=_digest(rule.model_dump(mode="json")),
    )
    platform.ledger.record_verdicts([new_row_of(verdict, run_id, MAIN)])
    return verdict


def newest_verdicts(model: str, platform: Platform) -> Sequence[Verdict]:
    """Return the newest verdict of each of the newest partitions, oldest first. Raises `LedgerError`."""
    rows = platform.ledger.newest_verdicts(verdicts_of(model))
    return [verdict_of(rows[key]) for key in sorted(rows)[-NEWEST:]]


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
