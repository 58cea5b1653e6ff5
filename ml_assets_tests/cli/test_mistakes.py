"""Mistakes of a new user at the command line: each is one line with the remedy, and exit status 1 or 2."""

import re
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from ml_assets.context.errors import LaunchRefused
from ml_assets.context.launch import typed_range
from ml_assets_tests.cli.terminal import Terminal

DAY, WEEK = "2013-12-31", "2024-01-01"
ONE_PARTITION = f"flight_delay is trained for one partition: ml-assets launch flight_delay {DAY}"
FLIGHTS = "datasets/flights"
REASON = ("--reason", "it looks right")
NO_MODEL = "no model is named 'store_deman': did you mean 'store_demand'?"
NO_TABLE = "no table is named 'datasets/flighs': did you mean 'datasets/flights'?"


def test_a_partition_that_is_not_over_is_refused_as_such() -> None:
    days = dg.DailyPartitionsDefinition("2024-01-01")
    with pytest.raises(LaunchRefused, match=r"; a partition comes once it is over$"):
        typed_range("datasets/days", days, str(datetime.now(UTC).date()))


@pytest.fixture
def busy() -> Iterator[str]:
    """A port that another program uses."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield str(other.getsockname()[1])


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        # Names of models and tables
        (("plan", "store_deman", WEEK), NO_MODEL),
        (("plan", FLIGHTS, DAY), f"no model is named '{FLIGHTS}'; there are: "),
        (("card", "store_deman"), NO_MODEL),
        (("history", "store_deman"), NO_MODEL),
        (("canary", "store_deman"), NO_MODEL),
        (("diff", "store_deman", "1", "2"), NO_MODEL),
        (("approve", "store_deman", "1", *REASON), NO_MODEL),
        (("reject", "store_deman", "1", *REASON), NO_MODEL),
        (("promote", "store_deman", *REASON), NO_MODEL),
        (("rollback", "store_deman", *REASON), NO_MODEL),
        (("demote", "store_deman", *REASON), NO_MODEL),
        (("archive", "store_deman", "1", *REASON), NO_MODEL),
        (("rules", "accept", "store_deman", *REASON), NO_MODEL),
        (("serve", "store_deman"), NO_MODEL),
        (("ui", "--only", "store_deman"), NO_MODEL),
        (
            ("launch", "store_deman", WEEK, "--with-missing"),
            "no model or table is named 'store_deman': did you mean",
        ),
        (
            ("launch", "flights", DAY),
            "'flights' is a table: give its folder, too: ml-assets launch datasets/flights",
        ),
        (("ui", "--only", "datasets/flighs"), NO_TABLE),
        (("accept", "datasets/flighs", DAY, *REASON), NO_TABLE),
        (("quarantine", "show", "datasets/flighs"), NO_TABLE),
        (("leaktest", "features/sales_featuers"), "no feature table is named 'sales_featuers': did you mean"),
        # Dates
        (
            ("launch", FLIGHTS, "2013-13-01"),
            "which is not a date: write YYYY-MM-DD, from 2013-01-01 to 2013-12-31",
        ),
        (("launch", FLIGHTS, "2013-1-1"), "which is not a date: write YYYY-MM-DD"),
        (("launch", FLIGHTS, "31.12.2013"), "which is not a date: write YYYY-MM-DD"),
        (("launch", FLIGHTS, "2013-01-05..2013-01-01"), "ends before it begins: write FIRST..LAST"),
        (("launch", FLIGHTS, "2013-01-01.."), "which is not a date"),
        (("launch", FLIGHTS), "name a partition, or a range FIRST..LAST"),
        (("launch", "flight_delay"), ONE_PARTITION),
        (("launch", "flight_delay", "--with-missing"), ONE_PARTITION),
        (("launch", "datasets/airlines", DAY), f"has no partitions: leave out '{DAY}'"),
        (
            ("launch", "flight_delay", "2014-12-31"),
            "only 2013-12-03 to 2013-12-31; for later ones, move or remove `end` of its partitions in defs.yaml",
        ),
        (("launch", FLIGHTS, "2013-13-01", "--with-missing"), "which is not a date: write YYYY-MM-DD"),
        (("plan", "flight_delay", "2013-12-30..2013-12-31"), ONE_PARTITION),
        (("accept", FLIGHTS, "2013-13-01", *REASON), "which is not a date: write YYYY-MM-DD"),
        (("accept", FLIGHTS, DAY, *REASON), f"has no verdict for {DAY}: materialize that partition first"),
        # What is not there yet, or cannot be asked for
        (
            ("card", "store_demand"),
            "has no registered version yet. To make one: ml-assets launch store_demand DATE",
        ),
        (("promote", "store_demand"), "a promotion needs a reason for the log: add --reason '…'"),
        (("launch", "store_demand/evaluation", WEEK), f"ml-assets launch store_demand {WEEK}"),
        (
            ("launch", "flight_delay/live", DAY, "--with-missing"),
            "is another asset: leave the option out",
        ),
        (
            ("launch", "flight_delay/predictions", DAY, "--with-missing"),
            "no version of flight_delay is in production",
        ),
        (
            ("verify", "nowhere", "--key", "nowhere.pem"),
            "the public key nowhere.pem cannot be read: No such file",
        ),
        (("dossier", "keygen", "/proc/none/keys"), "cannot write /proc/none/keys"),
        # Programs
        (("api", "--webserver", "http://127.0.0.1:3001"), "this ledger has no accounts"),
        (("api", "--webserver", "127.0.0.1:3001"), "is not http://HOST:PORT or https://HOST:PORT"),
        (("launch", "-f", "nowhere.yaml"), "nowhere.yaml cannot be read as YAML"),
        # A replay
        (("demo", "--replay", "14"), "--replay takes 1d to 59d, not '14': write --replay 14d"),
        (("demo", "--replay", "0d"), "--replay takes 1d to 59d, not '0d': write --replay 14d"),
        (("demo", "--replay", "60d"), "--replay takes 1d to 59d, not '60d': write --replay 14d"),
        (("demo", "--replay", "x"), "--replay takes 1d to 59d, not 'x': write --replay 14d"),
        (("demo", "--replay", ""), "--replay takes 1d to 59d, not '': write --replay 14d"),
        (("demo", "--replay", "2w"), "--replay takes 1d to 59d, not '2w': write --replay 14d"),
        (("demo", "--replay", "2d", "--json"), "leave one of them out"),
        (("demo", "--port", "3000"), "--port and --stay are for a replay: add --replay 14d"),
        (("demo", "--stay"), "--port and --stay are for a replay: add --replay 14d"),
    ],
)
def test_a_mistake_is_one_line_with_the_remedy(terminal: Terminal, typed: tuple[str, ...], said: str) -> None:
    refused = terminal(*typed)
    assert refused.status == 1
    assert refused.err.startswith("Error: ")
    assert refused.err.count("\n") == 1, refused.err
    assert said in refused.err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("accept", FLIGHTS), "Missing argument 'PARTITION'"),
        (("source", "show", FLIGHTS), "no command 'source show'; there are: check, dead-letters, preview"),
        (("gc", "--delet"), "Did you mean"),
        (("launch",), "name a TARGET, or a file with --file"),
        (("launch", "store_demand", "-f", "job.yaml"), "leave TARGET and --resources out"),
        (("plan", "--port", "3"), "No such option '--port'"),
        (("ui", "--port", "abc"), "'abc' is not a valid integer"),
        (("drill", "explode"), "'explode' is not one of 'kill-rank'"),
        (("leaktest", "features/sales_features", "--first", "2013-13-01"), "does not match the format"),
    ],
)
def test_a_mistake_in_the_usage_is_status_2(terminal: Terminal, typed: tuple[str, ...], said: str) -> None:
    refused = terminal(*typed)
    assert refused.status == 2
    assert said in refused.err.splitlines()[-1]


@pytest.mark.parametrize(
    "typed", [("ui",), ("review",), ("serve", "store_demand"), ("demo", "--replay", "2d")]
)
def test_a_port_in_use_is_named_with_the_option(
    terminal: Terminal, busy: str, typed: tuple[str, ...]
) -> None:
    refused = terminal(*typed, "--port", busy)
    assert refused.status == 1
    assert refused.err.count("\n") == 1, refused.err
    assert re.search(rf"{busy}\b.*Address already in use.* --port$", refused.err.strip())
    assert not refused.out


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("model: store_demand", "partition: Field required"),
        ("{model: store_demand, partition: 2024-01-08, epochs: 3}", "epochs: Extra inputs are not permitted"),
        ("- store_demand", "the document: Input should be a valid dictionary"),
        ("model: [", "cannot be read as YAML"),
        ("{model: store_deman, partition: 2024-01-08}", "no model or table is named 'store_deman'"),
        ("{model: store_demand, partition: 2024-01-09}", "store_demand has no partition '2024-01-09'"),
        (
            "{model: store_demand, partition: 2024-01-08, config: {memry: 1Gi}}",
            "resources have no key 'memry'",
        ),
    ],
)
def test_a_wrong_file_of_a_launch_is_named_with_its_fault(
    terminal: Terminal, tmp_path: Path, document: str, said: str
) -> None:
    """The API refuses the same documents."""
    file = tmp_path / "job.yaml"
    file.write_text(document)
    refused = terminal("launch", "-f", str(file))
    assert refused.status == 1
    assert said in refused.err
    assert refused.err.count("\n") == 1, refused.err


def test_a_replay_deletes_nothing_in_a_folder_of_others(terminal: Terminal) -> None:
    beside = terminal.home.with_name(f"{terminal.home.name}-replay")
    beside.mkdir()
    (beside / "thesis.txt").write_text("years of work")
    refused = terminal("demo", "--replay", "2d")
    assert refused.status == 1
    assert refused.err.count("\n") == 1, refused.err
    assert f"{beside} holds other files than those of a replay: move it away" in refused.err
    assert [one.name for one in beside.iterdir()] == ["thesis.txt"]


def test_an_empty_quarantine_is_said(terminal: Terminal) -> None:
    said = terminal("quarantine", "show", FLIGHTS)
    assert (said.status, said.out) == (0, f"No row of {FLIGHTS} is in quarantine.\n")
