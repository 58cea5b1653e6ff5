"""Evidently and Great Expectations, the peers of `claims/data/drift.py`, run by the interpreter of their environment.

    bare_drift_peers.py NAME FOLDER    prints {"seconds": …, "found": …} as its last line

Each reads its rows before the clock starts, because that is no part of the claim.
"""

import json
import sys
import time
from pathlib import Path

import pandas as pd


def evidently(before: pd.DataFrame, now: pd.DataFrame, method: str | None) -> tuple[float, int]:
    """Return seconds of Evidently's drift report, and the number of columns that it says drift.

    `method`: its distance; None is the default, Wasserstein for numbers and Jensen-Shannon for texts.
    """
    from evidently import Dataset, Report
    from evidently.presets import DataDriftPreset

    report = Report([DataDriftPreset(method=method)])
    start = time.perf_counter()
    done = report.run(Dataset.from_pandas(now), Dataset.from_pandas(before)).dict()
    seconds = time.perf_counter() - start
    drifts, *_ = done["metrics"]
    return seconds, drifts["value"]["count"]


def great_expectations(frame: pd.DataFrame) -> tuple[float, int]:
    """Return seconds of a validation by the rules of the claim, and the number of rules that are broken."""
    import great_expectations as gx
    import great_expectations.expectations as expect

    context = gx.get_context(mode="ephemeral")
    batch = (
        context.data_sources.add_pandas("rows")
        .add_dataframe_asset("rows")
        .add_batch_definition_whole_dataframe("rows")
    )
    suite = gx.ExpectationSuite(name="rules")
    for name in frame.columns:
        suite.add_expectation(expect.ExpectColumnValuesToNotBeNull(column=name))
        if name.startswith("n"):
            suite.add_expectation(
                expect.ExpectColumnValuesToBeBetween(column=name, min_value=-100, max_value=100)
            )
        else:
            suite.add_expectation(
                expect.ExpectColumnValuesToBeInSet(column=name, value_set=[f"v{n}" for n in range(100)])
            )
    definition = gx.ValidationDefinition(name="rules", data=batch, suite=suite)
    context.suites.add(suite)
    context.validation_definitions.add(definition)
    start = time.perf_counter()
    found = definition.run(batch_parameters={"dataframe": frame})
    return time.perf_counter() - start, found.statistics["unsuccessful_expectations"]


def main() -> None:
    """Measure one peer."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    before, now = (pd.read_parquet(folder / f"{one}.parquet") for one in ("before", "now"))
    if name == "great_expectations":
        seconds, found = great_expectations(now)
    else:
        seconds, found = evidently(before, now, "psi" if name == "evidently_psi" else None)
    print(json.dumps({"seconds": seconds, "found": int(found)}))


if __name__ == "__main__":
    main()
