"""A training is repeated if a value that it reads changed, and not if another column of its feature table did."""

import pickle
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ml_assets.data.snapshots import partitions
from ml_assets.data.snapshots.partitions import PartitionFiles, StoredFiles, neighbours
from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.data.tables.declared import NOTHING_DECLARED
from ml_assets.data.tables.publish.publish import publish
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, TableSpec
from ml_assets.data.validation.contract import Contract
from ml_assets.model.steps.snapshot import build_training_set, source_values, take_snapshot
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.model.steps.values import TrainingSet, ValidatedWindow
from ml_assets.model.steps.window import changes_since
from ml_assets_tests.components.readings_pipeline import HERE
from ml_assets_tests.tables import orders_table
from ml_assets_tests.tables.orders_table import FIRST, keys
from resources.platform import Platform
from resources.settings import Settings

DAYS, ROWS = 30, 6
NAMES = [f"c{n:02}" for n in range(40)]
KNOWN_AT = "known_at"
WIDE = TableSpec(
    kind="features",
    name="wide",
    contract=Contract.model_validate(
        {
            "primary_key": ["partition_date", "row"],
            "columns": [
                {"name": "partition_date", "dtype": "date"},
                {"name": "row", "dtype": "int64"},
                {"name": KNOWN_AT, "dtype": "datetime"},
                {"names": NAMES, "dtype": "int64"},
            ],
        }
    ),
    cadence=orders_table.spec().cadence,
    volume=orders_table.spec().volume,
)
Rows = Mapping[str, pl.DataFrame]


@dataclass(frozen=True)
class Wide:
    """A home with the feature table, and a model that reads some of its columns."""

    platform: Platform
    spec: PipelineSpec

    def hold(self, rows: Rows) -> None:
        """Publish these partitions."""
        incoming = [Incoming(key=key, data=frame) for key, frame in rows.items()]
        found = publish(
            self.platform.lake,
            self.platform.ledger,
            WIDE,
            incoming,
            PublishingRun(run_id="run"),
            NOTHING_DECLARED,
        )
        assert not found.rejected

    @property
    def reader(self) -> TableReader:
        """The table as main holds it now."""
        return TableReader.at(self.platform.lake, "main")

    @property
    def read(self) -> str:
        """Digest that `ml-assets plan` compares."""
        return source_values(self.spec, self.reader, WIDE.table, keys(DAYS)).digest

    @property
    def window(self) -> ValidatedWindow:
        """All days, as the first step of a run validates them now."""
        return ValidatedWindow(
            commit=self.reader.commit_id,
            table=WIDE.table,
            keys=tuple(keys(DAYS)),
            stale={},
            inputs=(),
            declared="",
        )

    def freeze(self, into: Path) -> Snapshot:
        """Build the training set anew, in a folder of its own."""
        return build_training_set(self.spec, self.platform, self.window, None, into=into)

    def taken(self) -> TrainingSet:
        """Return the value that the second step of a run hands on."""
        return take_snapshot(self.spec, self.platform, keys(DAYS)[-1], self.window, "a-run")[0]


def content_of(snapshot: Snapshot) -> object:
    """Return what workers read: rows, their order and their encoding, without the columns they came from."""
    files = [one.sha256 for one in (*snapshot.shards, *snapshot.splits)]
    return snapshot.fitted_digest, snapshot.index, files


def rows_of(seed: int) -> dict[str, pl.DataFrame]:
    """Return 30 days of random rows, whose labels were known in the evening."""
    draw = random.Random(seed)
    found: dict[str, pl.DataFrame] = {}
    for number, key in enumerate(keys(DAYS)):
        evening = datetime.fromisoformat(key).replace(tzinfo=UTC) + timedelta(hours=20)
        values = {name: [draw.randrange(1, 1000) for _ in range(ROWS)] for name in NAMES}
        found[key] = pl.DataFrame(
            {
                "partition_date": [FIRST + timedelta(number)] * ROWS,
                "row": range(ROWS),
                KNOWN_AT: [evening] * ROWS,
                **values,
            }
        )
    return found


def model_over(folder: Path, columns: list[str], **changes: Any) -> Wide:
    """A model whose label is the first column, its category the second, its weight the third, its numbers the others
    but the last, which cuts the holdout into slices."""
    label, category, weight, *numbers, sliced = columns
    declared: dict[str, Any] = {
        "name": "wide",
        "partitions": {"cadence": "daily", "start": keys(DAYS)[-1], "end": keys(DAYS)[-1]},
        "features": {
            "table": WIDE.table,
            "numeric": numbers,
            "categorical": [category],
            "label": label,
            "label_known_at": KNOWN_AT,
            "weight": weight,
            "primary_key": ["partition_date", "row"],
        },
        "window": {"train": 22, "validation": 4, "holdout": 4},
        "model": {"function": f"{HERE}.build"},
        "evaluation": {
            "objective": "regression",
            "bootstrap_unit": "partition_date",
            "slices": [sliced],
            "gates": [{"name": "beats the baseline", "metric": "rmse", "better_than": "baseline"}],
        },
    }
    spec = PipelineSpec.model_validate({**declared, **changes})
    return Wide(Platform(Settings(home=folder)), spec)


def of_columns(draw: random.Random, frame: pl.DataFrame) -> tuple[set[str], pl.DataFrame]:
    """Change the values of one to four columns."""
    changed = draw.sample(NAMES, draw.randrange(1, 5))
    return {*changed}, frame.with_columns((pl.col(name) + draw.randrange(1, 9)) for name in changed)


def of_knowledge(draw: random.Random, frame: pl.DataFrame) -> tuple[set[str], pl.DataFrame]:
    """Some labels became known long after."""
    late = pl.col("row") < draw.randrange(1, ROWS - 1)
    moved = pl.when(late).then(pl.col(KNOWN_AT) + timedelta(days=90)).otherwise(pl.col(KNOWN_AT))
    return {KNOWN_AT}, frame.with_columns(moved.alias(KNOWN_AT))


def of_rows(draw: random.Random, frame: pl.DataFrame) -> tuple[set[str], pl.DataFrame]:
    """A row is gone, or all come in another order."""
    if draw.random() < 0.5:
        return {*frame.columns}, frame.slice(1)
    return {"row", *NAMES}, frame.with_columns((ROWS - pl.col("row")).alias("row"))


def planted(seed: int, folder: Path) -> bool:
    """Plant changes in random columns of random days; return whether a full rebuild gives workers other rows.

    Require that the plan and the launch say the same, and that the plan names the changed columns with their readers.
    """
    draw = random.Random(seed)
    wide = model_over(folder, draw.sample(NAMES, draw.randrange(5, 14)))
    rows = rows_of(seed)
    wide.hold(rows)
    commit, read = wide.reader.commit_id, wide.read
    before = wide.freeze(folder / "before")
    planting = draw.choices([of_columns, of_knowledge, of_rows], [8, 1, 1])[0]
    changes = {key: planting(draw, rows[key]) for key in draw.sample(keys(DAYS), draw.randrange(1, 5))}
    wide.hold({key: frame for key, (_, frame) in changes.items()})

    after = wide.freeze(folder / "after")
    needed = content_of(after) != content_of(before)
    assert (wide.read != read, after.digest != before.digest) == (needed, needed), f"seed {seed}"
    seen = changes_since(wide.spec, wide.reader, commit, keys(DAYS))
    named = {(key, name): one.read_by for one in seen for key in one.keys for name in one.columns}
    assert named.keys() == {(key, name) for key, (names, _) in changes.items() for name in names}
    sliced = wide.spec.evaluation.slices[0]
    for (_, name), reader in named.items():
        is_read = name in wide.spec.training_columns
        assert reader == ("training" if is_read else "evaluation" if name == sliced else "nothing")
    assert needed == ("training" in named.values())
    return needed


@pytest.mark.parametrize(("seed", "needed"), [*enumerate([True, True, False, True, True, False])])
def test_planted_changes_give_neither_needless_nor_missed_trainings(
    seed: int, needed: bool, tmp_path: Path
) -> None:
    assert planted(seed, tmp_path) == needed


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 200))
def test_a_hundred_planted_changes_of_a_feature_table(seed: int, tmp_path: Path) -> None:
    planted(seed, tmp_path)


READ = ["c00", "c01", "c02", "c03", "c04", "c05"]
"""Label, category, weight, two numbers, slice."""


@pytest.fixture
def wide(tmp_path: Path) -> Wide:
    made = model_over(tmp_path / "home", READ)
    made.hold(rows_of(1))
    return made


@pytest.mark.parametrize("column", ["c00", "c01", "c02", "c03"])
def test_label_category_weight_and_number_count(wide: Wide, column: str) -> None:
    before, key = wide.read, keys(DAYS)[9]
    wide.hold({key: rows_of(1)[key].with_columns(pl.col(column) + 1)})
    assert wide.read != before


def test_a_plan_says_that_an_evaluation_reads_the_inputs_of_the_champion(wide: Wide) -> None:
    commit, key = wide.reader.commit_id, keys(DAYS)[9]
    wide.hold({key: rows_of(1)[key].with_columns(pl.col("c03", "c30", "c31") + 1)})
    found = changes_since(wide.spec, wide.reader, commit, keys(DAYS), champion=["c03", "c30"])
    assert {one.read_by: one.columns for one in found} == {
        "training": ("c03",),
        "evaluation": ("c30",),
        "nothing": ("c31",),
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.with_columns(pl.col("c05") + 1),
        lambda rows: rows.with_columns(pl.col("c30") * 0),
        lambda rows: rows.with_columns(pl.col("row") + 100),
    ],
    ids=["slice", "unread", "primary key, same order"],
)
def test_slices_unread_columns_and_names_of_rows_do_not(
    wide: Wide, tmp_path: Path, change: Callable[[pl.DataFrame], pl.DataFrame]
) -> None:
    first, key = wide.freeze(tmp_path / "first"), keys(DAYS)[9]
    wide.hold({key: change(rows_of(1)[key])})
    again = wide.freeze(tmp_path / "again")
    assert wide.read == first.source.digest
    assert (again.folder / "snapshot.json").read_bytes() == (first.folder / "snapshot.json").read_bytes()


@pytest.mark.parametrize(
    "model",
    [
        {"function": f"{HERE}.build"},
        {"script": "ml_assets.defs.flights.flight_delay_trees.train"},
        {"script": "ml_assets.defs.flights.flight_delay_blend.train"},
    ],
    ids=["function", "script", "blend"],
)
def test_a_run_reads_at_its_own_commit_and_finds_the_training(tmp_path: Path, model: dict[str, str]) -> None:
    """The commit belongs to the run: rejections, slices and retention are about what the newest run read."""
    wide = model_over(tmp_path / "home", READ, model=model, training={"workers": 1})
    rows, key = rows_of(1), keys(DAYS)[9]
    wide.hold(rows)
    first, again = wide.taken(), wide.taken()
    assert again == first
    wide.hold({key: rows[key].with_columns(pl.col("c30") + 1)})
    later = wide.taken()
    assert later.job.fingerprint == first.job.fingerprint
    assert later.trained_on.commit == wide.reader.commit_id != first.trained_on.commit
    assert set(wide.platform.lake.branches("keep-run-").values()) == {first.commit, later.commit}
    wide.hold({key: rows[key]})
    assert wide.taken() == first
    wide.hold({key: rows[key].with_columns(pl.col("c03") + 1)})
    assert wide.taken().job.fingerprint != first.job.fingerprint


def test_a_column_that_the_model_no_longer_weights_by_does_not_count(tmp_path: Path) -> None:
    made = model_over(tmp_path / "home", READ)
    features = {**made.spec.features.model_dump(exclude_unset=True), "weight": None}
    plain = Wide(
        made.platform, made.spec.model_copy(update={"features": type(made.spec.features)(**features)})
    )
    plain.hold(rows_of(1))
    before, key = plain.read, keys(DAYS)[9]
    plain.hold({key: rows_of(1)[key].with_columns(pl.col("c02") + 1)})
    assert plain.read == before


def test_rows_that_appear_while_a_set_is_built_are_not_in_it(wide: Wide, tmp_path: Path) -> None:
    """A run reads the commit of its validated window."""
    window, before = wide.window, wide.freeze(tmp_path / "before")
    key = keys(DAYS)[3]
    wide.hold({key: rows_of(1)[key].with_columns(pl.col("c03") + 1)})
    again = build_training_set(wide.spec, wide.platform, window, None, into=tmp_path / "again")
    assert again.digest == before.digest != wide.freeze(tmp_path / "later").digest


def test_workers_build_the_same_training_set(
    wide: Wide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task is a run of neighbouring partitions; this window has many."""
    before = wide.freeze(tmp_path / "before")
    monkeypatch.setattr(partitions, "neighbours", partial(neighbours, at_once=100))
    for pool in ({"pool": "in-process"}, {"pool": "processes", "pool_workers": 2, "pool_after_seconds": 0}):
        settings = Settings.model_validate({"home": wide.platform.settings.home, **pool})
        made = Wide(Platform(settings), wide.spec).freeze(tmp_path / pool["pool"])
        assert made.digest == before.digest
        assert [one.name for one in made.folder.parent.iterdir()] == [made.folder.name]


def test_a_worker_that_lacks_the_files_of_a_partition_fetches_them(wide: Wide, tmp_path: Path) -> None:
    """A worker of another machine sees no file of the run's."""
    key = keys(DAYS)[3]
    (path,) = (one.path for one in wide.reader.files(WIDE.table, [key]))
    stored = StoredFiles(platform=wide.platform, commit=wide.reader.commit_id, paths=(path,))
    there = PartitionFiles(
        key=key, rows=len(rows_of(1)[key]), files=(tmp_path / "elsewhere.parquet",), stored=stored
    )
    assert pickle.loads(pickle.dumps(there)).scan().collect().equals(rows_of(1)[key])
    (here,) = wide.reader.local_files(WIDE.table, [key])[key]
    assert pickle.loads(pickle.dumps(replace(there, files=(here,)))).files == (here,)


def test_another_type_of_an_unread_column_changes_nothing(wide: Wide, tmp_path: Path) -> None:
    """A feature function that chooses columns by pattern would see it; a model names its columns."""
    before = wide.freeze(tmp_path / "before")
    columns = WIDE.contract.model_dump(exclude_unset=True, mode="json")["columns"]
    more = [*columns, {"name": "added", "dtype": "string"}]
    wider = WIDE.contract.model_validate({"primary_key": list(WIDE.contract.primary_key), "columns": more})
    incoming = [
        Incoming(key=key, data=frame.with_columns(pl.lit("new").alias("added")))
        for key, frame in rows_of(1).items()
    ]
    spec = TableSpec(kind="features", name="wide", contract=wider, cadence=WIDE.cadence, volume=WIDE.volume)
    publish(
        wide.platform.lake,
        wide.platform.ledger,
        spec,
        incoming,
        PublishingRun(run_id="wider"),
        NOTHING_DECLARED,
    )
    assert wide.freeze(tmp_path / "after").digest == before.digest
