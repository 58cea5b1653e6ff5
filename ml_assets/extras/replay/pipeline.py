"""Pipeline of a replay: the example of the flights and its nightly model, as they are declared, with a few changes.

`changes` holds them: files in place of the package, a sensor that runs without a click, partitions that end with the
last replayed day; and `CALIBRATED`, a gate. Contracts, features, network, training and evaluation are those of
`ml_assets/defs/flights`.
"""

from collections.abc import Iterator, Mapping
from datetime import date
from itertools import takewhile
from pathlib import Path
from typing import Any

import dagster as dg

from ml_assets.assembly import build_defs
from ml_assets.components.base import ON_LATE_INPUTS, SpecComponent
from ml_assets.components.dataset import Dataset
from ml_assets.components.feature_table import FeatureTable
from ml_assets.components.metadata import TRAINS
from ml_assets.components.specs import ScheduleSection
from ml_assets.components.training_pipeline import TrainingPipeline, nightly_training
from ml_assets.dagster_host.defs_folder import declaring_files
from ml_assets.dagster_host.yaml_documents import documents_in
from ml_assets.data.tables.layout import MAIN
from ml_assets.data.tables.reader import TableReader
from ml_assets.extras.replay.source_days import FIRST_DAY, Replay, source_path
from resources.platform import Platform
from resources.settings import Settings

EXAMPLE = Path(__file__).parents[2] / "defs" / "flights"
"""Folder of the example whose days are replayed."""
FLIGHTS, WEATHER, FEATURES = "datasets/flights", "datasets/weather", "features/flight_departures"
WITHOUT_DATES = ("datasets/airports", "datasets/planes")
MODEL = "flight_delay_nightly"
LOOK_SECONDS = 5
"""Seconds between two looks of a sensor, the least that Dagster's daemon allows."""
ASK_AGAIN_SECONDS = 20
"""Seconds until the sensor requests a rejected day again. The source sends it whole as soon as it was rejected."""
EACH_MINUTE = "* * * * *"
"""Cron schedule of the trainings, the most frequent one. In the example it is once a night."""


def changes(home: Path, replay: Replay) -> Mapping[str, Mapping[str, Any]]:
    """Return the name of a table or model → the keys of its declaration that differ in a replay."""
    dated = {"cadence": "daily", "start": FIRST_DAY, "end": replay.last}
    watch = {"every_seconds": LOOK_SECONDS, "retry_seconds": ASK_AGAIN_SECONDS, "enabled": True}
    return {
        "flights": {
            "source": {"kind": "file", "path": source_path(home, FLIGHTS), "watch": watch},
            "partitions": dated,
            "on_bad_rows": "quarantine",
        },
        "weather": {"source": {"kind": "file", "path": source_path(home, WEATHER)}, "partitions": dated},
        "airports": {},
        "planes": {},
        # The leakage test takes as long as five days of a replay.
        "flight_departures": {"partitions": dated, "leakage_check": "off"},
        # `nightly_training` makes the schedule below: its job trains alone, because sensors make the tables.
        MODEL: {"partitions": {**dated, "start": replay.first}, "schedule": None},
    }


CALIBRATED = {"name": "calibrated", "metric": "ece", "at_most": 0.2}
"""Gate that the model has beside its own. `flight_delay` has it with 0.08, on 61 days. On a holdout of four days the
intervals of the other gates are wide, so that they leave most models undecided, and reject none."""


class _BuiltWhenDaysLand(FeatureTable):
    """Feature table whose days of any age are built once their inputs landed."""

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of the table with that condition."""
        made = super().build_defs(context)
        assets = [
            one.map_asset_specs(lambda spec: spec.replace_attributes(automation_condition=ON_LATE_INPUTS))
            for one in made.assets or ()
            if isinstance(one, dg.AssetsDefinition)
        ]
        return dg.Definitions(assets=assets, asset_checks=made.asset_checks)


class _TrainedEachMinute(TrainingPipeline):
    """Model with a schedule that trains the newest day with features, unless it is trained."""

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of the model and of its schedule."""
        section = ScheduleSection(cron=EACH_MINUTE, latest=f"{__name__}.{latest.__name__}", enabled=True)
        schedule = nightly_training(self.spec, section, f"{TRAINS}{self.spec.name}")
        return dg.Definitions.merge(super().build_defs(context), dg.Definitions(schedules=[schedule]))


_COMPONENTS: Mapping[str, type[SpecComponent]] = {
    "Dataset": Dataset,
    "FeatureTable": _BuiltWhenDaysLand,
    "TrainingPipeline": _TrainedEachMinute,
}


def components(home: Path, replay: Replay) -> Iterator[SpecComponent]:
    """Yield the components of a replay: the documents of the example with `changes`."""
    changed = changes(home, replay)
    for file in declaring_files(EXAMPLE):
        for document in documents_in(file):
            declared: Any = document.value
            attributes = declared["attributes"]
            if attributes["name"] in changed:
                component = _COMPONENTS[declared["type"].rpartition(".")[2]]
                attributes = {**attributes, **changed[attributes["name"]]}
                if component is _TrainedEachMinute:
                    evaluation = attributes["evaluation"]
                    attributes["evaluation"] = {**evaluation, "gates": [*evaluation["gates"], CALIBRATED]}
                yield component(component.spec_type.model_validate(attributes))


def definitions(settings: Settings, platform: Platform | None = None) -> dg.Definitions:
    """Return the definitions of the replay in the home of `settings`."""
    parts = list(components(settings.home, Replay.of(settings.home)))
    return build_defs(settings, components=parts, platform=platform, automation_seconds=LOOK_SECONDS)


def latest() -> date:
    """Return the newest day whose features are on main, with those of all days before it."""
    digests = TableReader.at(Platform(Settings()).lake, MAIN).digests(FEATURES)
    days = sorted(map(date.fromisoformat, digests))
    numbered = takewhile(lambda one: (one[1] - FIRST_DAY).days == one[0], enumerate(days))
    return max((day for _, day in numbered), default=FIRST_DAY)
