"""Drift of 1 million rows × 30 columns beside Evidently, and their validation beside Great Expectations.

Drift counts the profile of the new rows and the comparison with the stored profile of the earlier ones, because a table
stores it. The time with both profiles is a result of its own. Ours and Evidently find the same two columns that moved.
Validation checks 60 rules: no nulls, and a range or a set of values for each column. The peers run in their own
environment, which the first run makes.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl

from benchmarks._peers import SCRIPTS, peers_python
from benchmarks._report import Result, emit, interleave, parse_args
from ml_assets.data.validation.check import check_partitions
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.drift import drift
from ml_assets.data.validation.profile import profile

PEERS = ("evidently==0.7.23", "great-expectations==1.19.0", "pandas==2.3.3", "pyarrow")
ROWS, NUMBERS, TEXTS = 1_000_000, 24, 6
ROUNDS = 3
TIMES_EVIDENTLY, TIMES_EXPECTATIONS = 50, 20
MOVED = {"n03", "t2"}
LARGE = 0.1


def made_up(rows: int, *, moved: bool) -> pl.DataFrame:
    """Return normal numbers and texts of 100 values. `moved`: a mean by half a standard deviation, and a share."""
    draw = np.random.default_rng(int(moved))
    numbers = {f"n{n:02d}": draw.normal(0, 1 + n / 10, rows) for n in range(NUMBERS)}
    shares = 1 / np.arange(1, 101)
    texts = {f"t{n}": draw.choice(100, rows, p=shares / shares.sum()) for n in range(TEXTS)}
    if moved:
        numbers["n03"] += 0.65
        texts["t2"] = np.where(draw.random(rows) < 0.2, 42, texts["t2"])
    words = [f"v{n}" for n in range(100)]
    return pl.DataFrame({**numbers, **{name: np.array(words)[places] for name, places in texts.items()}})


def contract(frame: pl.DataFrame) -> Contract:
    """Return the rules that Great Expectations checks, too."""
    values = [f"v{n}" for n in range(100)]
    columns = [
        {"name": name, "dtype": "float64", "ge": -100, "le": 100}
        if name.startswith("n")
        else {"name": name, "dtype": "string", "isin": values}
        for name in frame.columns
    ]
    return Contract.model_validate({"columns": columns})


def drifting(before: dict[str, Any], now: pl.DataFrame) -> set[str]:
    """Return the columns of `now` whose PSI beyond chance from the profile `before` is large."""
    found = drift([before], [profile(now)])
    return {name for name, one in found.items() if one.psi_excess > LARGE}


def peer(name: str, folder: Path) -> tuple[float, int]:
    """Return the seconds of a peer, and the columns or rules that it found."""
    environment = os.environ | {"DO_NOT_TRACK": "1", "GX_ANALYTICS_ENABLED": "false", "PYTHONPATH": ""}
    done = subprocess.run(
        [peers_python("drift-peers", PEERS), SCRIPTS / "bare_drift_peers.py", name, folder],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    return said["seconds"], said["found"]


def measure(*, quick: bool) -> list[Result]:
    """Return the claims about drift and validation."""
    before, now = (made_up(ROWS // 10 if quick else ROWS, moved=one) for one in (False, True))
    rules = contract(now)
    stored = profile(before)
    found = drifting(stored, now)
    findings = check_partitions({"all": now}, rules)["all"]
    ways: dict[str, Callable[[], object]] = {
        "drift": lambda: drifting(stored, now),
        "both": lambda: drifting(profile(before), now),
        "validation": lambda: check_partitions({"all": now}, rules),
    }
    rounds: list[dict[str, float]] = []
    broken = 0
    with tempfile.TemporaryDirectory(prefix="drift-") as made:
        folder = Path(made)
        before.write_parquet(folder / "before.parquet")
        now.write_parquet(folder / "now.parquet")
        by_default, first = peer("evidently", folder)
        counts = {first}
        for _ in range(1 if quick else ROUNDS):  # in turns, so that other work disturbs both sides alike
            ours = {name: one.median for name, one in interleave(ways, 3).items()}
            evidently, moved = peer("evidently_psi", folder)
            expectations, rules_broken = peer("great_expectations", folder)
            rounds.append(ours | {"evidently": evidently, "expectations": expectations})
            counts |= {moved}
            broken += rules_broken
    middle = {name: median(one[name] for one in rounds) for name in rounds[0]}
    evidently, expectations = middle["evidently"], middle["expectations"]
    drift_s, checked = middle["drift"], middle["validation"]
    ratios = sorted(one["evidently"] / one["drift"] for one in rounds)
    times, faster = median(ratios), expectations / checked
    agrees = found == MOVED and counts == {len(MOVED)}
    return [
        Result(
            name=f"drift of {now.height:,} rows × {now.width} columns from a stored profile: Evidently takes "
            f"{times:.0f} × (in {len(rounds)} rounds {ratios[0]:.0f} to {ratios[-1]:.0f}; with both profiles "
            f"{middle['both']:.2f} s, {evidently / middle['both']:.0f} ×)",
            value=drift_s,
            unit="s",
            peers={"Evidently, PSI": evidently, "Evidently, default": by_default},
            bar=f"≥ {TIMES_EVIDENTLY} ×, the same columns"
            + ("" if agrees else f": OTHERS ({sorted(found)}, {sorted(counts)})"),
            ok=agrees and (quick or times >= TIMES_EVIDENTLY),
        ),
        Result(
            name=f"validation of the same rows by {2 * now.width} rules: Great Expectations takes {faster:.0f} ×",
            value=checked,
            unit="s",
            peers={"Great Expectations": expectations},
            bar=f"≥ {TIMES_EXPECTATIONS} ×" + ("" if not findings and not broken else ": OTHER FINDINGS"),
            ok=not findings and not broken and (quick or faster >= TIMES_EXPECTATIONS),
        ),
    ]


if __name__ == "__main__":
    arguments = parse_args(__doc__)
    raise SystemExit(emit(measure(quick=arguments.quick), json=arguments.json))
