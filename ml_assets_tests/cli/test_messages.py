"""Wrong input is answered in a line with a remedy."""

from pathlib import Path

import pytest

from ml_assets.cli.terminal import Problem, explained, say, say_aside
from ml_assets.context.home import read_settings
from ml_assets.model.release.releases import NotPromotable
from ml_assets_tests.cli.terminal import Terminal


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("lanch", "parts", "2024-03-31"), "no command 'lanch': did you mean 'launch'?"),
        (("lake", "audt"), "no command 'lake audt': did you mean 'audit'?"),
        (("trainings", "prune-all"), "no command 'trainings prune-all': did you mean 'prune'?"),
        (("xyz",), "no command 'xyz'; there are: accept, "),
        (("ui", "--port", "80000"), "80000 is not in the range 1<=x<=65535"),
        (("promote", "m", "1_0"), "'1_0' is not the number of a version: write digits, such as 3"),
        (("archive", "m", " 1", "--reason", "old"), "' 1' is not the number of a version"),
        (("ui", "--port", "0"), "0 is not in the range 1<=x<=65535"),
    ],
)
def test_a_command_that_cannot_be_is_refused_in_a_line(
    terminal: Terminal, typed: tuple[str, ...], said: str
) -> None:
    refused = terminal(*typed)
    assert refused.status == 2
    assert said in refused.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("digest", "--day", "9999-12-31"), "--day 9999-12-31 is in the future"),
        (("history", "m", "--at", "0001-01-01T00:00:00+05:00"), "is not a time"),
        (("history", "m", "--at", "9999-12-31"), "is in the future"),
        (
            ("archive", "tiny_text", "9" * 20, "--reason", "old"),
            "tiny_text has no version with a number that long",
        ),
    ],
)
def test_a_value_beyond_all_data_is_refused_in_a_line(
    terminal: Terminal, typed: tuple[str, ...], said: str
) -> None:
    refused = terminal(*typed)
    assert refused.status == 1
    assert said in refused.err
    assert refused.err.count("\n") == 1


@pytest.mark.parametrize("typed", [("doctor",), ("launch", "store_demand", "2024-01-01")])
def test_a_home_that_cannot_be_written_is_named_with_the_setting(
    tmp_path: Path, typed: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("")
    home = tmp_path / "file" / "home"
    refused = Terminal(home)(*typed)
    assert refused.status == 1
    assert refused.err.startswith(f"Error: cannot write to the home {home} (Not a directory): ")
    assert "set ML_ASSETS_HOME to another folder" in refused.err
    assert refused.err.count("\n") == 1


@pytest.mark.parametrize("name", ["HOME", "LAKE_URL", "GPU_HOUR_PRICE", "KUBERNETES_LEASE_SECONDS"])
def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(f"ML_ASSETS_{name}", raising=False)
    unset = read_settings()
    monkeypatch.setenv(f"ML_ASSETS_{name}", "")
    assert read_settings() == unset
    assert unset.home.is_absolute()


HOSTILE = "slice \x1b[2K\x1b[1Apassed \u202eback\x9b0m"
"""Name from data that deletes the line before it on a terminal, or turns its text around."""


def test_names_from_data_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A refusal names slices of the data: such a name could delete the refusal, and print that it passed."""
    say(f"one:\t{HOSTILE}\ntwo")
    say_aside(HOSTILE)
    with pytest.raises(SystemExit), explained():
        raise NotPromotable(f"small 1 is not promoted: {HOSTILE}", "gates")
    said = capsys.readouterr()
    shown = "slice \ufffd[2K\ufffd[1Apassed \ufffdback\ufffd0m"
    assert said.out == f"one:\t{shown}\ntwo\n"
    assert said.err == f"{shown}\nError: small 1 is not promoted: {shown}\n"
    assert Problem(HOSTILE).format_message() == shown
