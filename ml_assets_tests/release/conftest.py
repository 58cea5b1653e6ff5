"""One small trained-like model with real numbers, text, nulls and unknown words, and its bundle."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor, nn

from ml_assets.data.features.encoding import FittedState, fit
from ml_assets.foundation.days import Days
from ml_assets.model.release.bundle import BundleContents, build_bundle
from ml_assets.model.release.bundle_store import Bundle, BundleStore, Lineage, seal
from ml_assets.model.release.promotion import register
from ml_assets.model.release.registry import Registry
from ml_assets.model.release.releases import DecisionRefused, Ground, Releases
from ml_assets.model.release.reviews import accept_rules
from ml_assets.model.release.rules import Rules
from ml_assets.model.release.runtime import FACTS
from ml_assets_tests.release.recorded_evaluations import record_evaluation
from ml_assets_tests.resources.webhook_receiver import Receiver, running_receiver
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, days, keys
from resources.artifacts import FolderArtifacts
from resources.ledger import EvaluationRow, Ledger, Person, TrainedOn
from resources.platform import Platform
from resources.settings import Settings
from resources.tracking.mlflow_client import open_client

Evaluate = Callable[..., EvaluationRow]

NUMERIC = ["hour", "distance", "is_late", "delay"]
CATEGORY = ["carrier", "gate"]


class Meanwhile(BundleStore):
    """A store; something happens while it reads a bundle."""

    def __init__(self, store: BundleStore, happens: Callable[[Bundle], object]) -> None:
        self._store = store
        self._happens = happens
        self.opened: list[str] = []

    def open(self, digest: str) -> Bundle:
        bundle = self._store.open(digest)
        self.opened.append(digest)
        self._happens(bundle)
        return bundle


@contextmanager
def refuses(
    kind: type[DecisionRefused], ground: Ground, *facts: str
) -> Generator[pytest.ExceptionInfo[DecisionRefused]]:
    """Expect a refusal on `ground` whose message has all `facts`, patterns of names, figures and commands."""
    with pytest.raises(kind) as found:
        yield found
    said = str(found.value)
    assert found.value.ground == ground, said
    assert [fact for fact in facts if not re.search(fact, said)] == [], said


class Net(nn.Module):
    """Fills, embeds: the shape of what the platform trains."""

    def __init__(self, fitted: FittedState) -> None:
        super().__init__()
        values = [state.standardised_fill for state in fitted.numeric]
        self.register_buffer("fill", torch.tensor(values, dtype=torch.float32))
        self.embed = nn.ModuleList(nn.Embedding(state.cardinality, 4) for state in fitted.categorical)
        width = len(fitted.numeric) + 4 * len(fitted.categorical)
        self.net = nn.Sequential(
            nn.Linear(width, 16),
            nn.LayerNorm(16),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(16, len(fitted.classes) or 1),
        )

    def forward(self, numeric: Tensor, category: Tensor) -> Tensor:
        filled = torch.where(torch.isnan(numeric), self.fill, numeric)
        embedded = [embed(category[:, i]) for i, embed in enumerate(self.embed)]
        return self.net(torch.cat([filled, *embedded], dim=1)).squeeze(1)


@pytest.fixture(scope="session")
def rows() -> pl.DataFrame:
    """`example_rows`."""
    return example_rows()


def example_rows() -> pl.DataFrame:
    """600 raw rows: integers, floats and booleans with nulls, text with nulls, integers as categories."""
    random = np.random.default_rng(7)
    frame = pl.DataFrame(
        {
            "hour": random.integers(0, 24, 600),
            "distance": random.normal(900, 400, 600).astype(np.float32),
            "is_late": random.integers(0, 2, 600).astype(bool),
            "delay": random.normal(0, 30, 600),
            "carrier": random.choice(["AA", "B6", "Ünited", "true"], 600),
            "gate": random.integers(1, 40, 600),
            "label": random.integers(0, 2, 600),
        }
    )
    holes = [
        pl.when(pl.int_range(pl.len()) % n == 0).then(None).otherwise(pl.col(name)).alias(name)
        for n, name in ((5, "hour"), (7, "delay"), (11, "is_late"), (13, "carrier"), (17, "gate"))
    ]
    return frame.with_columns(holes)


@pytest.fixture(scope="session")
def contents(rows: pl.DataFrame) -> BundleContents:
    """A binary model over numbers and categories; some words stay out of the vocabulary."""
    return contents_of(rows, NUMERIC, CATEGORY, "binary")


@pytest.fixture(scope="session")
def make_contents(rows: pl.DataFrame) -> Callable[..., BundleContents]:
    """`(numeric, category, objective, **changes of the lineage) -> BundleContents`."""
    return lambda *arguments, **changes: contents_of(rows, *arguments, **changes)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> BundleStore:
    return BundleStore(FolderArtifacts(tmp_path_factory.mktemp("artifacts")))


@pytest.fixture(scope="session")
def bundle(contents: BundleContents, store: BundleStore) -> Bundle:
    return build_bundle(contents, store)


@pytest.fixture(scope="session")
def first_answer_elsewhere() -> Callable[[Bundle], float]:
    """Return a bundle's answer to its first golden row in a process that has neither the project nor torch."""
    program = (
        "import sys; sys.modules['ml_assets'] = sys.modules['resources'] = sys.modules['torch'] = None\n"
        "from pathlib import Path; import polars as pl; from runtime import ServingModel\n"
        "model = ServingModel.load(Path.cwd())\n"
        "print(float(model.predict(pl.read_parquet('golden.parquet'))[0]))"
    )

    def ask(bundle: Bundle) -> float:
        command = [sys.executable, "-B", "-c", program]
        return float(subprocess.check_output(command, cwd=bundle.folder, text=True))

    return ask


@pytest.fixture
def orders(tmp_path: Path) -> OrdersTable:
    """A lake with three days of orders, and the ledger with their verdicts."""
    orders = OrdersTable(tmp_path)
    orders.publish(days(3))
    return orders


@pytest.fixture
def ledger(orders: OrdersTable) -> Ledger:
    return orders.ledger


@pytest.fixture
def window(orders: OrdersTable) -> TrainedOn:
    """All three days."""
    first, *_, last = keys(3)
    commit = orders.store.resolve("main")
    return TrainedOn(commit=commit, table=ORDERS, first=first, last=last, partitions=3)


@pytest.fixture
def evaluate(ledger: Ledger, window: TrainedOn) -> Evaluate:
    """`(bundle, status, **changes) -> EvaluationRow`: an evaluation of a bundle that was trained on the window."""
    return partial(record_evaluation, ledger, trained_on=window)


@pytest.fixture
def registry(tracking_uri: str, store: BundleStore) -> Registry:
    return Registry(tracking_uri, store.address)


@pytest.fixture
def releases(orders: OrdersTable, registry: Registry, store: BundleStore) -> Releases:
    return Releases(orders.ledger, registry, store, orders.store)


@pytest.fixture
def run_id(tracking_uri: str) -> str:
    client = open_client(tracking_uri)
    return client.create_run(client.create_experiment("small")).info.run_id


def put_in_force(releases: Releases, rules: Rules) -> None:
    """Let a person who runs and promotes nothing accept other rules of the model `small`."""
    accept_rules(releases, "small", rules, by=Person.unchecked("lead"), reason="as the test wants it")


@pytest.fixture
def two_versions(
    releases: Releases, evaluate: Evaluate, run_id: str, bundle: Bundle, variant: Callable[..., Bundle]
) -> tuple[Bundle, Bundle]:
    """Versions 1 and 2, both blessed."""
    second = variant(fingerprint="2" * 64, snapshot_digest="6" * 64)
    for one in (bundle, second):
        evaluate(one)
        register(releases, one, run_id=run_id, links={})
    return bundle, second


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A webhook on loopback."""
    with running_receiver() as receiver:
        yield receiver


@pytest.fixture
def platform(
    tmp_path: Path,
    tracking_uri: str,
    orders: OrdersTable,
    store: BundleStore,
    receiver: Receiver,
    two_versions: tuple[Bundle, Bundle],
) -> Platform:
    """A platform with the orders and both versions, whose notices go to `receiver`."""
    platform = Platform(Settings(home=tmp_path, tracking_uri=tracking_uri, webhook=receiver.address))
    platform.__dict__.update(ledger=orders.ledger, lake=orders.store, artifacts=store.artifacts)
    return platform


@pytest.fixture
def copied(bundle: Bundle, tmp_path: Path) -> Path:
    """A copy of the bundle's files that a test may break."""
    return Path(shutil.copytree(bundle.folder, tmp_path / "bundle", copy_function=shutil.copyfile))


@pytest.fixture
def variant(bundle: Bundle, store: BundleStore) -> Callable[..., Bundle]:
    """`(**changes of the lineage) -> Bundle` with the same weights, without another export."""

    return lambda **changes: variant_of(bundle, store, **changes)


def variant_of(bundle: Bundle, store: BundleStore, **changes: object) -> Bundle:
    """Return a bundle with the same weights and other facts of its lineage, without another export."""
    facts = replace(bundle.facts, lineage=replace(bundle.facts.lineage, **changes))
    with store.incoming() as folder:
        shutil.copytree(bundle.folder, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
        (folder / FACTS).write_text(facts.to_json())
        seal(folder)
        return store.add(folder)


def contents_of(
    rows: pl.DataFrame,
    numeric: list[str],
    category: list[str],
    objective: str,
    classes: tuple[str, ...] = (),
    **changes: object,
) -> BundleContents:
    """A model over columns of `rows` with the weights it begins with; `changes` are of its lineage."""
    fitted = replace(fit(rows, numeric, category, min_count=12), classes=classes)
    torch.manual_seed(11)
    lineage = {
        "model": "small",
        "fingerprint": "f" * 64,
        "snapshot_digest": "5" * 64,
        "label": "label",
        "windows": {"train": ("2013-01-29", "2013-09-30"), "holdout": ("2013-11-01", "2013-12-31")},
        "seen": Days((("2013-01-29", "2013-09-30"),)),
        "schema_hash": "a" * 64,
        "code_version": "c" * 64,
        "weights_sha256": "e" * 64,
        "feature_versions": {"features/small": "d" * 64},
        "configuration": {"hidden": 16, "seed": 1},
    }
    return BundleContents(
        module=Net(fitted),
        fitted=fitted,
        objective=objective,
        rows=rows,
        lineage=Lineage(**{**lineage, **changes}),
        metrics={"validation_loss": 0.5},
    )
