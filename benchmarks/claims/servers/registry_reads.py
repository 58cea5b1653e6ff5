"""Reads of versions over ten minutes, while MLflow and the ledger's PostgreSQL are killed twenty times.

Four processes read 10,000 times which version is in production or the canary, and which bundle has a number; every
tenth read loads the model as a process does that just started. Another process promotes and rolls back. Each answer is
compared with the ledger's rows. Runs only by name (`make bench ARGS=registry_reads`): it starts and ends the servers.
"""

import os
import tempfile
from pathlib import Path

from benchmarks._report import Result, emit, parse_args
from deployment.testbed.servers import Servers
from deployment.testbed.servers.servers_record import storage_variables, variables
from ml_assets.model.release.promotion import promote
from ml_assets.model.release.releases import releases_of
from ml_assets_tests.faults.registry_reads import Outcome, in_words, percentile, read_while_killed
from ml_assets_tests.release.conftest import example_rows
from ml_assets_tests.serving.released import register
from resources.ledger import Person
from resources.platform import Platform
from resources.settings import Settings

MODEL = "read_model"
CLIENTS = 4
LEAST_ANSWERED = 0.999


def measure(folder: Path, servers: Servers, *, reads: int, seconds: float, kills: int) -> Outcome:
    """Register three versions, put each into production once, and read while servers are killed."""
    record = servers.up()
    os.environ |= storage_variables(record)
    given = variables(record)
    settings = Settings(
        home=folder / "home",
        author="ada",
        artifacts_url=given["ML_ASSETS_ARTIFACTS_URL"],
        s3_endpoint_url=given["ML_ASSETS_S3_ENDPOINT_URL"],  # pyright: ignore[reportArgumentType]
        tracking_uri=given["ML_ASSETS_TRACKING_URI"],  # pyright: ignore[reportArgumentType]
        ledger_url=given["ML_ASSETS_LEDGER_URL"],  # pyright: ignore[reportArgumentType]
    )
    platform = Platform(settings)
    for number in (1, 2, 3):
        register(platform, example_rows(), str(number), MODEL)
        promote(releases_of(platform), MODEL, number, by=Person.unchecked("ada"), reason="for the readers")
    return read_while_killed(
        MODEL,
        settings,
        storage_variables(record),
        folder / "reads",
        reads=reads,
        clients=CLIENTS,
        seconds=seconds,
        kills=kills,
        kill=servers.kill,
        restart=servers.restart,
        down_seconds=(1.0, 8.0),
    )


def main() -> int:
    """Measure; print the counts and both bars."""
    arguments = parse_args(__doc__)
    reads, seconds, kills = (1_000, 60.0, 4) if arguments.quick else (10_000, 600.0, 20)
    with tempfile.TemporaryDirectory(prefix="registry-reads-") as folder:
        servers = Servers(Path(folder) / "servers", ("s3", "postgresql", "mlflow"))
        try:
            outcome = measure(Path(folder), servers, reads=reads, seconds=seconds, kills=kills)
        finally:
            servers.down()
    if not arguments.json:
        print(f"{in_words(outcome)}.")
        print(
            f"{outcome.decided} decisions; kills: {', '.join(f'{n} {of}' for of, n in outcome.kills.items())}; the "
            f"oldest last answer was {outcome.oldest_seconds:.1f} s old."
        )
        times = [f"{percentile(outcome.seconds, share) * 1e3:.1f} ms" for share in (0.5, 0.99, 1.0)]
        print(f"A read took {times[0]} (median), {times[1]} (99 %), {times[2]} (longest).")
        for line in [*outcome.refused[:5], *outcome.wrong[:5]]:
            print(line)
    share = outcome.answered / sum(outcome.kinds.values())
    return emit(
        [
            Result(
                name="reads answered while servers are killed",
                value=100 * share,
                unit="%",
                bar=f"≥ {100 * LEAST_ANSWERED:g} %",
                ok=share >= LEAST_ANSWERED,
            ),
            Result(
                name="wrong answers",
                value=len(outcome.wrong),
                unit="answers",
                bar="0",
                ok=not outcome.wrong,
            ),
        ],
        json=arguments.json,
    )


if __name__ == "__main__":
    raise SystemExit(main())
