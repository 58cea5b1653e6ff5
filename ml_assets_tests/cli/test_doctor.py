"""`ml-assets doctor` names the part that is ill and what helps."""

from ml_assets_tests.cli.terminal import Terminal

PARTS = [
    "python",
    "packages",
    "home",
    "definitions",
    "lake",
    "artifacts",
    "ledger",
    "tracker",
    "dagster storage",
    "processes",
]


def test_a_fresh_home_is_well(terminal: Terminal) -> None:
    said = terminal("doctor")
    assert said.status == 0, said.out
    assert [line[6:22].strip() for line in said.out.splitlines() if line.startswith("ok ")] == PARTS
    assert said.out.splitlines()[-1] == "All parts are well."


def test_an_ill_part_is_named_with_its_remedy_and_the_others_are_still_checked(terminal: Terminal) -> None:
    (terminal.home / "ledger.db").write_text("this was a database")
    said = terminal("doctor")
    assert said.status == 1
    (ill,) = [line for line in said.out.splitlines() if line.startswith("ILL")]
    assert ill.startswith("ILL   ledger")
    assert len([line for line in said.out.splitlines() if line.startswith("ok ")]) == len(PARTS) - 1
