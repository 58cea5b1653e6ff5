"""The pipeline `tiny_text` from an empty home to a decision: perplexity on the holdout, and time beside bare steps.

Three launches, as a person gives them: the documentation, its windows, the model with its declared layout (FSDP2 and
tensor parallelism, 65,536 tokens a step). The perplexities are those of the stored evaluation, on the same texts: the
model, the frequencies of bytes, and counts of three bytes in a row. The yardstick of the launch is its number of steps
by bare PyTorch: the same model and AdamW on as many tokens, in one process on all cores, measured before and after the
launch. It takes minutes, so it runs only by name.
`--home FOLDER` keeps the home, to look at its reports. `--quick` changes nothing: the model has no smaller form.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.nn import functional

from benchmarks._report import Result, emit
from ml_assets.defs.tiny_text.model import TOKENS, ByteModel
from ml_assets.model.evaluation.evaluation_document import Evaluation
from ml_assets.model.evaluation.report_document import Report

MODEL, LAST = "tiny_text", "2018-12-24"
WEEKS = f"2017-01-02..{LAST}"
MOST_PERPLEXITY = 7
"""Limit of the pipeline's gate."""
MOST_TIMES_BARE = 2.5
"""Longest launch of the model, as a multiple of its steps by bare PyTorch: training set, four workers that divide every
layer and meet in each, evaluation, registration."""
STEPS, WINDOWS, PASSES = 108, 256, 4
"""Steps of the training, windows of a step, and passes in which a step takes them, as the pipeline declares."""
BARE_STEPS = 5


def launch(home: Path, asset: str, keys: str) -> float:
    """Launch `asset` in `home` and return the wall seconds; what it prints goes to standard error."""
    program = Path(sys.executable).with_name("ml-assets")
    environment = os.environ | {"ML_ASSETS_HOME": str(home)}
    start = time.perf_counter()
    subprocess.run([program, "launch", asset, keys], env=environment, stdout=sys.stderr, check=True)
    return time.perf_counter() - start


def bare_steps() -> list[float]:
    """Return the seconds of each of `BARE_STEPS` steps by plain PyTorch, after one that is not measured."""
    model = ByteModel(256, width=64, heads=4, layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tokens = torch.randint(256, (WINDOWS, TOKENS))
    none = torch.empty(WINDOWS // PASSES, 0)
    taken: list[float] = []
    for _ in range(1 + BARE_STEPS):
        start = time.perf_counter()
        for part in tokens.chunk(PASSES):
            scores = model(none, none, part)
            loss = functional.cross_entropy(scores[:, :-1].flatten(0, 1), part[:, 1:].flatten())
            (loss / PASSES).backward()
        optimizer.step()
        optimizer.zero_grad()
        taken.append(time.perf_counter() - start)
    return taken[1:]


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
        steps = bare_steps()
        seconds = launch(home, MODEL, LAST)
        steps += bare_steps()
        evaluation = evaluation_in(home)
    model = evaluation.values()["perplexity"]
    bytes_alone = evaluation.values("baseline")["perplexity"]
    counts = evaluation.values("reference")["perplexity"]
    decision = evaluation.decision.status
    bare = STEPS * statistics.median(steps)
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
            name="launch of tiny_text: training set to registered version "
            f"(a bare step {min(steps):.2f} to {max(steps):.2f} s)",
            value=seconds,
            unit="s",
            peers={f"{STEPS} steps by bare PyTorch": bare, "the two tables before it, 104 weeks": tables},
            ratio=seconds / bare,
            bar=f"≤ {MOST_TIMES_BARE:g} × its steps by bare PyTorch",
            ok=seconds <= MOST_TIMES_BARE * bare,
        ),
    ]
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
