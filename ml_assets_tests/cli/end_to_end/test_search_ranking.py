"""The nightly ranking of films, as it is typed: the first model is blessed, and the next night's must be better."""

from pathlib import Path

import pytest

from ml_assets_tests.cli.terminal import Said, Terminal

pytestmark = pytest.mark.nightly
NIGHTS = ("1998-04-21", "1998-04-22")
DAYS = f"1997-09-20..{NIGHTS[-1]}"


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory, _empty_tracker: Path) -> Terminal:
    """Return a terminal in a home with all ratings and features."""
    home = tmp_path_factory.mktemp("ranking")
    (home / "mlflow.db").write_bytes(_empty_tracker.read_bytes())
    terminal = Terminal(home)
    for words in (
        ("datasets/films",),
        ("datasets/users",),
        ("datasets/ratings", DAYS),
        ("features/film_pages", DAYS),
    ):
        said = terminal("launch", *words)
        assert said.status == 0, said.err
    return terminal


@pytest.fixture(scope="module")
def first_night(ready: Terminal) -> Said:
    """Output of the first training."""
    return ready("launch", "search_ranking", NIGHTS[0])


def test_a_ranking_of_films_beats_popular_films_first(ready: Terminal, first_night: Said) -> None:
    assert first_night.status == 0, first_night.err
    assert "decision blessed" in first_night.out, first_night.out
    assert "version 1" in first_night.out


def test_the_next_night_must_be_better_by_half_a_percent(ready: Terminal, first_night: Said) -> None:
    """One more day of ratings changes the order by far less."""
    promoted = ready("promote", "search_ranking", "--reason", "the first model")
    assert promoted.status == 0, promoted.err
    said = ready("launch", "search_ranking", NIGHTS[1])
    assert "decision rejected" in said.out, said.out
    assert "better by half a percent" in said.out
