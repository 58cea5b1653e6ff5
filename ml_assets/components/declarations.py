"""Faults of the declarations, one line each: file, line, key, and the nearest right word.

Here: refusing a defs folder with all its faults at once, and faults across files: names used twice, inputs that nothing
declares. Not here: faults of a single document (`documents`).
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from ml_assets.components.columns import (
    DAYS_BEGIN_IN,
    INPUT_CADENCES,
    column_faults,
    drift_fault,
    zone_fault,
)
from ml_assets.components.documents import documents_of, faults_in, place_of, short
from ml_assets.data.tables.cadence import CadenceKind, fit_of
from ml_assets.foundation.checkout import ROOT
from resources.words import did_you_mean

DEFS = ROOT / "ml_assets" / "defs"


class DeclarationRefused(Exception):
    """The declarations cannot be loaded. Each line of the message names a file, a line and the remedy."""


@contextmanager
def in_one_line(defs_folder: Path = DEFS) -> Iterator[None]:
    """Turn faults in YAML files into `DeclarationRefused` while definitions load. Other errors pass."""
    try:
        yield
    except Exception:
        # Dagster stops at the first fault, deep in its own tree. A person wants to see all faults at once.
        if lines := faults_in(defs_folder):
            raise DeclarationRefused("\n".join(lines)) from None
        raise


def require_consistent(defs: dg.Definitions, defs_folder: Path = DEFS) -> None:
    """Raise `DeclarationRefused` if components do not fit together.

    Faults: two components have the same name; a component reads a table that nothing declares, that has other
    partitions or that begins later; a component names columns of a table that `column_faults` refuses; the days of a
    model begin in another time zone than those of its table; a model counts the drift of a table that declares none.
    """
    assets = [asset for asset in defs.assets or () if isinstance(asset, dg.AssetsDefinition)]
    by_key = {key.to_user_string(): asset for asset in assets for key in asset.keys}
    lines = list(_declared_twice(assets, defs_folder))
    for asset in assets:
        for read in sorted(key.to_user_string() for key in asset.dependency_keys):
            at = ", ".join(_places(rf".*\btable:\s*{read}\b", defs_folder))
            if read not in by_key:
                lines.append(f"{at}: no defs.yaml declares '{read}'{did_you_mean(read, by_key)}")
            elif why := _misfit(asset, by_key[read], read):
                lines.append(f"{at}: {_who(asset)} {why[0]} and reads {read}, which {why[1]}")
            else:
                faults = list(column_faults(asset, by_key[read], read))
                others = [zone_fault(asset, read, by_key), drift_fault(asset, by_key[read], read)]
                for key, fault in [*faults, *(one for one in others if one)]:
                    lines.append(f"{_place_of(_who(asset), key, defs_folder) or at}: {_who(asset)} {fault}")
    if lines:
        raise DeclarationRefused("\n".join(dict.fromkeys(lines)))


def _declared_twice(assets: Sequence[dg.AssetsDefinition], defs_folder: Path) -> Iterator[str]:
    # A model with a study has two definitions, with different keys.
    for (name, _), times in Counter((_who(asset), min(asset.keys)) for asset in assets).items():
        if times > 1:
            at = _places(rf"\s+name:\s*{name.rpartition('/')[2]}\s*(#.*)?$", defs_folder)
            files = dict.fromkeys(place.rpartition(":")[0] for place in at)
            yield f"{', '.join(files)}: '{name}' is declared {times} times: rename all but one"


def _who(asset: dg.AssetsDefinition) -> str:
    """Return a table's id; for a model's assets, the model's name."""
    first, *rest = min(asset.keys).path
    return "/".join([first, *rest]) if first in ("datasets", "features") else first


def _misfit(asset: dg.AssetsDefinition, source: dg.AssetsDefinition, table: str) -> tuple[str, str] | None:
    """Describe the partitions of a reader and of its input `table` if they do not fit; None if they fit.

    A table without partitions always fits.
    """
    own, read = asset.partitions_def, source.partitions_def
    if not isinstance(own, dg.TimeWindowPartitionsDefinition):
        return None
    if not isinstance(read, dg.TimeWindowPartitionsDefinition):
        return None
    mine, its = _cadence(own), _cadence(read)
    fit = fit_of(mine, its)
    if fit is None or (fit != "same" and min(asset.keys).path[0] != "features"):
        return f"is {mine}", f"is {its}: give both one cadence"
    if (_stated(asset, table) or mine) != its:
        return f"is {mine}", f"is {its}: write `cadence: {its}` in this input"
    remedy = "give that of the days `event_time_zone: UTC`"
    if its == "hourly" and (zone := _zone_of_days(asset)) != "UTC":
        return f"begins its days in {zone}", f"has hours of UTC: {remedy}"
    if mine == "hourly" and (zone := _zone_of_days(source)) != "UTC":
        return "has hours of UTC", f"begins its days in {zone}: {remedy}"
    first = read.start + (timedelta(days=7 if its == "weekly" else 1) if fit == "coarser" else timedelta(0))
    if own.start < first:
        return (
            f"begins {own.start:%Y-%m-%d}",
            f"begins {read.start:%Y-%m-%d}: set `start` to {first:%Y-%m-%d} or later",
        )
    return None


def _zone_of_days(asset: dg.AssetsDefinition) -> str:
    return str(asset.metadata_by_key.get(min(asset.keys), {}).get(DAYS_BEGIN_IN, "UTC"))


def _stated(asset: dg.AssetsDefinition, table: str) -> str:
    """Return the cadence that a feature table states for an input; empty if it states none."""
    metadata = asset.metadata_by_key.get(min(asset.keys), {})
    return str(metadata.get(INPUT_CADENCES, {}).get(table, ""))


def _cadence(partitions: dg.TimeWindowPartitionsDefinition) -> CadenceKind:
    kinds: dict[str, CadenceKind] = {
        "HOURLY": "hourly",
        "DAILY": "daily",
        "WEEKLY": "weekly",
        "MONTHLY": "monthly",
    }
    assert partitions.schedule_type is not None  # `partitions_definition` makes no others
    return kinds[partitions.schedule_type.value]


def _places(line: str, defs_folder: Path) -> list[str]:
    """Return `file:line` of every matching line in a `defs.yaml`."""
    return [
        f"{short(str(file))}:{number}"
        for file in sorted(defs_folder.rglob("defs.yaml"))
        for number, text in enumerate(file.read_text().splitlines(), start=1)
        if re.match(line, text)
    ]


def _place_of(who: str, key: str, defs_folder: Path) -> str:
    """Return `file:line` of a dotted `key` of the component that declares `who`; empty if no file holds it."""
    kind, _, name = who.rpartition("/")
    class_name = {"datasets": "Dataset", "features": "FeatureTable"}.get(kind, "TrainingPipeline")
    path = [int(part) if part.isdecimal() else part for part in ("attributes", *key.split("."))]
    for document in documents_of(defs_folder):
        said: Any = document.value
        if str(said.get("type")).endswith(class_name) and said.get("attributes", {}).get("name") == name:
            return place_of(document, path)
    return ""
