"""Holdout metrics of `search_ranking` with intervals, compared with the naive model and a linear regression.

Types the four commands of a first night into an empty home. The intervals redraw the users of the last four weeks.
`--quick` changes nothing: the data has no smaller form.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._report import Result, emit, parse_args
from ml_assets.model.evaluation.evaluation_document import Part
from ml_assets.model.evaluation.metrics.bootstrap import Interval
from ml_assets.model.evaluation.report_document import Report

LAST = "1998-04-22"
DAYS = f"1997-09-20..{LAST}"
COMMANDS = (
    ("datasets/films",),
    ("datasets/users",),
    ("datasets/ratings", DAYS),
    ("features/film_pages", DAYS),
    ("search_ranking", LAST),
)
LEAST_BETTER = 0.005
"""Least improvement of the NDCG over the baseline, as a share: half a percent, as the gate on the champion asks."""


def whole_holdout(home: Path) -> Part:
    """Train in `home`; return the figures of the whole holdout."""
    program = Path(sys.executable).with_name("ml-assets")
    environment = {"ML_ASSETS_HOME": str(home), "PATH": "/usr/bin:/bin", "HOME": str(home)}
    for words in COMMANDS:
        subprocess.run(
            [str(program), "launch", *words], env=environment, stdout=subprocess.DEVNULL, check=True
        )
    [path] = (home / "artifacts" / "reports" / "search_ranking" / LAST).rglob("*.json")
    return Report.model_validate_json(path.read_text()).evaluation.overall


def bounds(name: str, interval: Interval) -> dict[str, float]:
    """Return the bounds of an interval by name."""
    return {f"{name}, low": interval.low or 0.0, f"{name}, high": interval.high or 0.0}


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    arguments = parse_args(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        overall = whole_holdout(Path(folder))
    results: list[Result] = []
    for metric in ("ndcg", "mrr", "recall"):
        ours, better = overall.metrics["challenger"][metric], overall.improvements["baseline"][metric]
        peers = {role: overall.metrics[role][metric].value or 0.0 for role in ("baseline", "reference")}
        least = LEAST_BETTER * peers["baseline"] if metric == "ndcg" else 0.0
        results.append(
            Result(
                name=f"search_ranking holdout {metric}, first 10 places",
                value=ours.value or 0.0,
                unit=metric,
                peers=peers | bounds("network", ours) | bounds("better than the baseline", better),
                bar=f"better than the baseline by > {least:.4f}, with its interval",
                ok=(better.low or 0.0) > least,
            )
        )
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
