"""Time of the walk over the ledger's hash chain, which each decision of a person does first.

Measured on SQLite in a temporary folder, with 10,000 evaluations.
"""

import tempfile
import time
from pathlib import Path

from benchmarks._report import Result, emit, parse_args
from resources.ledger import Ledger, NewEvaluation, Person, TrainedOn

MOST_SECONDS = 1.0


def main() -> int:
    """Fill a ledger, measure, print, decide."""
    arguments = parse_args(__doc__)
    rows = 500 if arguments.quick else 10_000
    with tempfile.TemporaryDirectory() as folder:
        log = Ledger(f"sqlite:///{Path(folder) / 'ledger.db'}").models
        window = TrainedOn(commit="c" * 64, table="features/small", first="a", last="b", partitions=2)
        for number in range(rows):
            log.record_evaluation(
                NewEvaluation(
                    model="small",
                    partition="2013-12-31",
                    bundle_digest="b" * 64,
                    evaluation_digest=f"{number:064}",
                    champion_digest=None,
                    status="blessed",
                    summary="Blessed: every rule passed on the whole holdout and on each slice.",
                    rules=(),
                    by=Person.unchecked("ada"),
                    report="file:///reports/small/report.html",
                    run_id="a-run",
                    trained_on=window,
                )
            )
        seconds: list[float] = []
        for _ in range(5):
            begin = time.process_time()
            log.verify()
            seconds.append(time.process_time() - begin)
    value = sorted(seconds)[2]
    result = Result(
        name=f"CPU time of the walk over {rows:,} rows",
        value=value,
        unit="s",
        peers={},
        ratio=None,
        bar=f"≤ {MOST_SECONDS:g} s, median of 5",
        ok=value <= MOST_SECONDS,
    )
    return emit(result, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
