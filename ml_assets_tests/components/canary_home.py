"""A home with three days of a feature table, a version in production, another as canary, and a log of requests.

`begun` and `with_new_canary` make it. A test logs requests as a server would.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.model.release.bundle import build_bundle
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.onnx_graph import MatrixGraph
from ml_assets.model.release.promotion import promote, register
from ml_assets.model.release.releases import bundles_of, releases_of
from ml_assets.model.release.reviews import accept_rules
from ml_assets.model.release.rules import NO_RULES, Rules, deciding_as_json
from ml_assets.use.serving.canary import is_of_canary
from ml_assets.use.serving.request_log import LoggedRow, RequestLog
from ml_assets_tests.components.installation import Installation, failure_of, readings_components
from ml_assets_tests.components.readings_pipeline import FEATURES, MODEL, READINGS, days
from ml_assets_tests.release.conftest import contents_of, variant_of
from ml_assets_tests.release.recorded_evaluations import record_evaluation
from ml_assets_tests.release.test_matrix import weighted_sum
from resources.ledger import Person, Promotion, TrainedOn
from resources.tracking.mlflow_client import open_client

DAYS = days(3, start=1)
Change = Callable[[dict[str, Any]], dict[str, Any]]
"""Another row in place of the one that a client sends."""
SHARE = 0.4
WATCH = [
    {"metric": "error_rate", "no_worse_by": 0.02},
    {"metric": "latency_ms", "no_worse_by": 1.0},
    {"metric": "mae", "no_worse_by": 1.0, "largest": 10.0},
]
CANARY = {"bake_hours": 1e-9, "share": SHARE, "by": ["machine"], "watch": WATCH}


@dataclass(frozen=True)
class CanaryHome:
    """The home after the promotions."""

    installation: Installation
    spec: TrainingPipelineSpec
    champion: Promotion
    canary: Promotion
    rows: pl.DataFrame
    """Rows of the feature table."""

    @property
    def as_champion(self) -> dict[str, Any]:
        """Fields of a logged row that the champion answered."""
        return {
            "role": "production",
            "version": int(self.champion.version),
            "bundle_digest": self.champion.bundle_digest,
        }

    def log(self, count: int, answer: Callable[[bool, float, int], dict[str, Any]]) -> None:
        """Log `count` requests for rows of the table in turn, of as many entities, as a server would.

        `answer(is_canary, label, number)` gives the fields of a logged row that differ from a right answer.
        """
        begin = int(datetime.now(UTC).timestamp() * 1e6)
        raw = self.rows.select("at", "machine", "load").to_dicts()
        labels = self.rows["made"].to_list()
        with RequestLog(self.installation.platform.artifacts) as log:
            for number in range(count):
                entity = json.dumps([f"machine {number}"])
                is_canary = is_of_canary(
                    entity,
                    secret=b"servers",
                    model=MODEL,
                    bundle_digest=self.canary.bundle_digest,
                    begun=self.canary.at,
                    share=SHARE,
                )
                promotion = self.canary if is_canary else self.champion
                row = raw[number % len(raw)]
                logged: dict[str, Any] = {
                    "request_id": f"{number:08d}",
                    "place": 0,
                    "at_us": begin + number,
                    "model": MODEL,
                    "version": int(promotion.version),
                    "bundle_digest": promotion.bundle_digest,
                    "role": "canary" if is_canary else "production",
                    "assigned": "canary" if is_canary else "production",
                    "request_rows": 1,
                    "entity": entity,
                    "row": json.dumps(row | {"at": row["at"].isoformat()}).encode(),
                    "prediction": [labels[number % len(raw)]],
                    "latency_us": 1000 + number % 7,
                }
                log.add([LoggedRow(**(logged | answer(is_canary, labels[number % len(raw)], number)))])


def begun(home: Path) -> tuple[Installation, Bundle]:
    """Return a home with the tables, and a model that is built once."""
    *tables, pipeline = readings_components(pipeline={"release": {"canary": CANARY}})
    installation = Installation(home, [*tables, pipeline])
    for table, keys in ((READINGS, days(4)), (FEATURES, DAYS)):
        result = installation.run(table, partition=keys[0], last=keys[-1])
        assert result.success, failure_of(result)
    rows = installation.main.scan(FEATURES, DAYS).collect()
    lineage: dict[str, Any] = {"model": MODEL, "label": "made"}
    contents = contents_of(rows, ["load", "made_yesterday"], ["machine"], "regression", **lineage)
    # A graph of a few sums in place of the network: its export from torch takes seconds.
    contents = replace(contents, module=MatrixGraph(weighted_sum(3).SerializeToString()))
    return installation, build_bundle(contents, bundles_of(installation.platform))


def log_features(
    installation: Installation, bundle: Bundle, day: str, change: Change = lambda row: row
) -> None:
    """Log each row of a day's features as a server does that was sent it, after a change."""
    begin = datetime.fromisoformat(f"{day}T12:00:00+00:00")
    with RequestLog(installation.platform.artifacts) as log:
        for number, row in enumerate(installation.main.scan(FEATURES, [day]).collect().to_dicts()):
            sent = change({name: row[name] for name in ("at", "machine", "load", "made_yesterday")})
            log.add(
                [
                    LoggedRow(
                        request_id=f"{day}-{number}",
                        place=0,
                        at_us=int(begin.timestamp() * 1e6) + number,
                        model=MODEL,
                        assigned="production",
                        request_rows=1,
                        entity=None,
                        row=json.dumps(sent, default=lambda at: at.isoformat()).encode(),
                        prediction=[1.0],
                        latency_us=900,
                        role="production",
                        version=1,
                        bundle_digest=bundle.digest,
                    )
                ]
            )


def with_new_canary(installation: Installation, exported: Bundle, **changes: object) -> CanaryHome:
    """Return the home with a new version as canary, beside the version in production or a first one.

    `changes` are of the canary's lineage.
    """
    platform, pipeline = (
        installation.platform,
        readings_components(pipeline={"release": {"canary": CANARY}})[-1],
    )
    releases, log = releases_of(platform), platform.ledger.models
    window = TrainedOn(
        commit=installation.main.commit_id, table=FEATURES, first=DAYS[0], last=DAYS[-1], partitions=3
    )
    client = open_client(installation.settings.resolved_tracking_uri.reveal())
    experiment = client.get_experiment_by_name(MODEL)
    run_id = client.create_run(
        experiment.experiment_id if experiment else client.create_experiment(MODEL)
    ).info.run_id

    gates = deciding_as_json(pipeline.spec.rules.evaluation or {})

    def promoted(rules: Rules, **changes: object) -> Promotion:
        number = len(log.evaluations(MODEL)) + 1
        bundle = variant_of(exported, bundles_of(platform), fingerprint=f"{number:064}", **changes)
        record_evaluation(platform.ledger, bundle, trained_on=window, partition=DAYS[-1], gates=gates)
        version = register(releases, bundle, run_id=run_id, links={})
        accept_rules(releases, MODEL, rules, by=Person.unchecked("lead"), reason="for the next version")
        return promote(
            releases, MODEL, version.number, by=Person.unchecked("ada"), reason="the next", rules=rules
        )

    champion = log.in_production(MODEL) or promoted(NO_RULES)
    canary = promoted(pipeline.spec.rules, **changes)
    rows = installation.main.scan(FEATURES, DAYS).collect()
    return CanaryHome(installation, pipeline.spec, champion, canary, rows)
