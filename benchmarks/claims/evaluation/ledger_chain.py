"""CPU time of the walk over the ledger's hash chain, which each decision of a person does first.

Measured on SQLite in a temporary folder, with 10,000 evaluations. The peer is a walk by sqlite3, json and hashlib
alone: it reads the same rows in order and compares the same SHA-256 with the stored one.
"""

import hashlib
import json
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks._report import Result, emit, interleave, parse_args, ratio_of
from resources.ledger import Ledger, NewEvaluation, Person, TrainedOn
from resources.ledger.chain import HASHED
from resources.ledger.tables import decisions

MOST_TIMES_PLAIN = 3.0
"""The walk also reads the acceptances of partitions, and it names the first row that differs."""
ROUNDS = 9


def walk_plainly(file: Path, rows: int) -> None:
    """Check the chain by the standard library."""
    walked, before, at = 0, "", HASHED.index("previous")
    with closing(sqlite3.connect(file)) as connection:
        read = connection.execute(f"SELECT {', '.join(HASHED)}, digest FROM {decisions.name} ORDER BY place")
        for *row, digest in read:
            content = json.dumps(row, default=repr).encode()
            if hashlib.sha256(content).hexdigest() != digest or row[at] != before:
                raise SystemExit(f"row {walked + 1} differs from its digest")
            walked, before = walked + 1, digest
    if walked != rows:
        raise SystemExit(f"{walked} of {rows} rows were read")


def main() -> int:
    """Fill a ledger, measure, print, decide."""
    arguments = parse_args(__doc__)
    rows = 500 if arguments.quick else 10_000
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ledger.db"
        log = Ledger(f"sqlite:///{file}").models
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
        ways = {"ours": log.verify, "plain": lambda: walk_plainly(file, rows)}
        timings = interleave(ways, ROUNDS, time.process_time)
    times = ratio_of(timings["ours"].seconds, timings["plain"].seconds)
    result = Result(
        name=f"CPU time of the walk over {rows:,} rows ({times.spread})",
        value=timings["ours"].median,
        unit="s",
        peers={"sqlite3, json and hashlib": timings["plain"].median},
        ratio=times.median,
        bar=f"≤ {MOST_TIMES_PLAIN:g} × sqlite3, json and hashlib",
        ok=times.median <= MOST_TIMES_PLAIN,
    )
    return emit(result, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
