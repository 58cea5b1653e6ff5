"""The pipeline `tiny_text` from an empty home to a decision: perplexity on the holdout, and seconds.

Three launches, as a person gives them: the documentation, its windows, the model with its declared layout (FSDP2 and
tensor parallelism, 65,536 tokens a step). The perplexities are those of the stored evaluation, on the same texts: the
model, the frequencies of bytes, and counts of three bytes in a row. It takes minutes, so it runs only by name.
`--home FOLDER` keeps the home, to look at its reports. `--quick` changes nothing: the model has no smaller form.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._report import Result, emit
from ml_assets.model.evaluation.evaluation_document import Evaluation
from ml_assets.model.evaluation.report_document import Report

MODEL, LAST = "tiny_text", "2018-12-24"
WEEKS = f"2017-01-02..{LAST}"
MOST_PERPLEXITY = 7
"""Limit of the pipeline's gate."""
MOST_SECONDS = 360
"""Longest launch of the model on two idle cores: training set, training, evaluation, registration."""


def launch(home: Path, asset: str, keys: str) -> float:
    """Launch `asset` in `home` and return the wall seconds; what it prints goes to standard error."""
    program = Path(sys.executable).with_name("ml-assets")
    environment = os.environ | {"ML_ASSETS_HOME": str(home)}
    start = time.perf_counter()
    subprocess.run([program, "launch", asset, keys], env=environment, stdout=sys.stderr, check=True)
    return time.perf_counter() - start


def evaluation_in(home: Path) -> Evaluation:
    """Return the stored evaluation of the model."""
    [document] = (home / "artifacts" / "reports" / MODEL / LAST).glob("*/evaluation.json")
    return Report.model_validate_json(document.read_bytes()).evaluation


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no effect")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    parser.add_argument("--home", type=Path, help="empty folder for the home, which stays")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        home = arguments.home or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tables = sum(
            launch(home, table, WEEKS) for table in ("datasets/documentation", "features/text_windows")
        )
        seconds = launch(home, MODEL, LAST)
        evaluation = evaluation_in(home)
    model = evaluation.values()["perplexity"]
    bytes_alone = evaluation.values("baseline")["perplexity"]
    counts = evaluation.values("reference")["perplexity"]
    decision = evaluation.decision.status
    results = [
        Result(
            name=f"perplexity of tiny_text on its holdout ({decision})",
            value=model,
            unit="per byte",
            peers={"frequencies of bytes": bytes_alone, "counts of three bytes in a row": counts},
            ratio=model / counts,
            bar=f"≤ {MOST_PERPLEXITY:g}, blessed",
            ok=model <= MOST_PERPLEXITY and decision == "blessed",
        ),
        Result(
            name="launch of tiny_text: training set to registered version",
            value=seconds,
            unit="s",
            peers={"the two tables before it, 104 weeks": tables},
            bar=f"≤ {MOST_SECONDS} s",
            ok=seconds <= MOST_SECONDS,
        ),
    ]
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
