"""Day-block bootstrap of a two-month holdout: three models, their metrics and differences, 1000 redraws, one thread.

The whole measurement of a holdout has 30 slices, bias, thresholds with costs and the search for worst slices. It has
the regression as a fourth model, as every evaluation. It is measured with blocks of a day, and with one for each row.

The peer is the direct way: scikit-learn on the rows of each redraw. It is timed on a few redraws and scaled up, for AUC
and log loss only. The second claim shows the reason for blocks: single-row redraws would make the interval of the log
loss too narrow.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}

import time
from datetime import date, timedelta

import numpy as np
import polars as pl

from benchmarks._report import Result, emit, interleave, parse_args
from ml_assets.model.evaluation.comparison.curves import ScoredRows, threshold_table
from ml_assets.model.evaluation.comparison.gates import Champion
from ml_assets.model.evaluation.comparison.holdout import evaluate
from ml_assets.model.evaluation.comparison.holdout_rows import redraws_of
from ml_assets.model.evaluation.comparison.worst_slices import worst_slices
from ml_assets.model.evaluation.metrics.bootstrap import block_form, draw_blocks, estimate, interval, paired
from ml_assets.model.evaluation.metrics.metrics import METRICS, Vector, metrics_of
from ml_assets.model.evaluation.report_document import WorstSlices
from ml_assets.model.evaluation.spec import EvaluationSpec

ROWS, DAYS, DRAWS = 54_000, 61, 1000
SLICES = 30
FEATURES = [f"number_{index}" for index in range(20)]
SPEC = EvaluationSpec.model_validate(
    {
        "objective": "binary",
        "slices": ["origin", "carrier", {"column": "date", "by": "month"}, "hour"],
        "draws": DRAWS,
        "bias": [{"column": "region", "threshold": 0.3}],
        "costs": {"false_positive": 1, "false_negative": 4},
        "gates": [{"name": "better than the champion", "metric": "logloss", "better_than": "champion"}],
    }
)
BY_SESSION = SPEC.model_copy(update={"bootstrap_unit": "session"})


def made_up_holdout() -> tuple[pl.DataFrame, dict[str, Vector]]:
    """Return as many rows and days as November and December of the flights, with days that are hard as a whole."""
    random = np.random.default_rng(2013)
    day = np.sort(random.integers(0, DAYS, ROWS))
    hardness = random.normal(0, 0.6, DAYS)[day]
    known = random.normal(0, 1, ROWS)

    def chance(logits: Vector) -> Vector:
        return 1 / (1 + np.exp(-logits))

    label = (random.random(ROWS) < chance(-1.4 + 0.8 * known + hardness)).astype(np.float64)
    frame = pl.DataFrame(
        {
            "date": [date(2013, 11, 1) + timedelta(days=int(one)) for one in day],
            "origin": random.choice(["EWR", "JFK", "LGA"], ROWS),
            "carrier": random.choice([f"C{index}" for index in range(14)], ROWS),
            "hour": random.integers(6, 17, ROWS),
            "region": random.choice([f"R{index}" for index in range(6)], ROWS),
            "session": np.arange(ROWS),
            "label": label,
        }
        | {name: random.normal(0, 1, ROWS) for name in FEATURES}
    )
    return frame, {
        "challenger": chance(-1.35 + 0.75 * known + 0.4 * hardness + random.normal(0, 0.3, ROWS)),
        "champion": chance(-1.35 + 0.70 * known + 0.3 * hardness + random.normal(0, 0.4, ROWS)),
        "reference": chance(-1.35 + 0.5 * known),
        "baseline": np.full(ROWS, 0.25) + 0.02 * (frame.get_column("origin") == "EWR").to_numpy(),
    }


def day_numbers(frame: pl.DataFrame) -> np.ndarray:
    """Day of each row, from 0."""
    return (frame.get_column("date").rank("dense").cast(pl.Int64).to_numpy() - 1).astype(np.intp)


def all_intervals(frame: pl.DataFrame, scores: dict[str, Vector]) -> int:
    """Compute every metric of every model and every difference from the challenger, on the whole holdout."""
    y, days = frame.get_column("label").to_numpy(), day_numbers(frame)
    counts = draw_blocks(DAYS, DRAWS, seed=0)
    found = 0
    for metric in metrics_of("binary"):
        estimates = {
            role: estimate(block_form(metric, y, p, days, DAYS), counts, DAYS) for role, p in scores.items()
        }
        pairs = [
            paired(estimates["challenger"], estimates[role], higher_is_better=metric.higher_is_better)
            for role in ("champion", "baseline")
        ]
        found += len([interval(one, 0.95) for one in (*estimates.values(), *pairs)])
    return found


def worst_of(frame: pl.DataFrame, scores: dict[str, Vector], spec: EvaluationSpec) -> WorstSlices | None:
    """Search the worst slices by all features."""
    return worst_slices(frame, scores, spec, label="label", features=frame.select(FEATURES).iter_columns())


def whole_measurement(frame: pl.DataFrame, scores: dict[str, Vector], spec: EvaluationSpec) -> int:
    """Measure everything that a report shows of the holdout but explanations; return the number of measured slices."""
    found = evaluate(frame, scores, spec, champion=Champion("peer"))
    worst_of(frame, scores, spec)
    rows = ScoredRows.of(frame.get_column("label"), scores["challenger"], np.ones(frame.height))
    if spec.costs is not None:
        threshold_table(spec.costs, rows, rows, redraws_of(frame, spec), spec.confidence)
    return sum(bool(part.metrics) for part in found.slices)


def seconds_of_rows(frame: pl.DataFrame, scores: dict[str, Vector], redraws: int) -> float:
    """Return the seconds that 1000 redraws would take with gathered rows and scikit-learn."""
    import sklearn.metrics as sk

    y, days = frame.get_column("label").to_numpy(), day_numbers(frame)
    rows_of = [np.flatnonzero(days == day) for day in range(DAYS)]
    random = np.random.default_rng(0)
    start = time.perf_counter()
    for _ in range(redraws):
        rows = np.concatenate([rows_of[day] for day in random.integers(0, DAYS, DAYS)])
        for p in scores.values():
            sk.roc_auc_score(y[rows], p[rows])
            sk.log_loss(y[rows], p[rows])
    return (time.perf_counter() - start) / redraws * DRAWS


def width(frame: pl.DataFrame, p: Vector, blocks: np.ndarray, count: int) -> float:
    """Return the width of the log loss's 95 % interval."""
    y = frame.get_column("label").to_numpy()
    counts = draw_blocks(count, 300, seed=0)
    found = interval(estimate(block_form(METRICS["logloss"], y, p, blocks, count), counts, count), 0.95)
    return (found.high or 0) - (found.low or 0)


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    arguments = parse_args(__doc__)
    frame, scores = made_up_holdout()
    timings = interleave(
        {
            "intervals": lambda: all_intervals(frame, scores),
            "evaluation": lambda: evaluate(frame, scores, SPEC, champion=Champion("peer")),
            "whole": lambda: whole_measurement(frame, scores, SPEC),
            "by session": lambda: whole_measurement(frame, scores, BY_SESSION),
            "worst slices": lambda: worst_of(frame, scores, SPEC),
        },
        rounds=3 if arguments.quick else 7,
    )
    by_rows = seconds_of_rows(frame, scores, redraws=3 if arguments.quick else 20)
    assert whole_measurement(frame, scores, SPEC) == SLICES
    taken, whole = timings["intervals"].median, timings["evaluation"].median
    together, spread = timings["whole"].median, timings["whole"].spread
    found = timings["worst slices"].median
    searched = worst_of(frame, scores, SPEC)
    looked_at = 0 if searched is None else searched.candidates
    by_day = width(frame, scores["challenger"], day_numbers(frame), DAYS)
    single = width(frame, scores["challenger"], np.arange(ROWS, dtype=np.intp), ROWS)
    return emit(
        [
            Result(
                name=f"intervals of 3 models and 2 differences × 4 metrics, {ROWS:,} rows, {DRAWS} redraws",
                value=taken,
                unit="s",
                peers={"scikit-learn on redrawn rows (AUC and log loss, scaled up)": by_rows},
                ratio=taken / by_rows,
                bar="≤ 1/100 × scikit-learn, on one thread",
                ok=100 * taken <= by_rows,
            ),
            Result(
                name=f"the same for {SLICES} slices, with bias, curves and gate decision",
                value=whole,
                unit="s",
                bar="≤ 1/25 × scikit-learn's intervals",
                ok=25 * whole <= by_rows,
            ),
            Result(
                name=f"whole measurement: the same, thresholds and worst slices (spread {spread:.1f} s)",
                value=together,
                unit="s",
                bar="≤ 1/20 × scikit-learn's intervals",
                ok=20 * together <= by_rows,
            ),
            Result(
                name=f"whole measurement with a block for each of {ROWS:,} sessions",
                value=timings["by session"].median,
                unit="s",
                bar="≤ 1/8 × scikit-learn's intervals",
                ok=8 * timings["by session"].median <= by_rows,
            ),
            Result(
                name=f"worst slices among {looked_at:,}, of 24 columns and their pairs",
                value=found,
                unit="s",
                bar="≤ 1/50 × scikit-learn's intervals",
                ok=50 * found <= by_rows,
            ),
            Result(
                name="width of the log loss's interval, redrawn by day",
                value=by_day,
                unit="nats",
                peers={"by single rows": single},
                ratio=by_day / single,
                bar="wider than by single rows: days are not independent rows",
                ok=by_day > single,
            ),
        ],
        json=arguments.json,
    )


if __name__ == "__main__":
    raise SystemExit(main())
