"""Measured claims: their tables, which are made from `benchmarks/claims.toml`, and the scripts that measure them."""

import tomllib

from benchmarks._report import has_time
from benchmarks.run import chosen
from deployment.site.claims_page import Claim, claims_tables, sections
from ml_assets.foundation.checkout import ROOT

DOCUMENT = tomllib.loads((ROOT / "benchmarks" / "claims.toml").read_text())
SECTIONS = sections(DOCUMENT)
SCRIPTS = {
    path.relative_to(ROOT / "benchmarks" / "claims").as_posix()
    for path in ROOT.glob("benchmarks/claims/*/*.py")
    if not path.name.startswith(("_", "bare_"))
}


def test_page_and_readme_in_git_are_made_from_the_claims() -> None:
    tables = claims_tables(ROOT)
    assert {path: (ROOT / path).read_text() for path in tables} == tables, (
        "run make render, and commit what it writes"
    )


def test_the_readme_has_six_claims() -> None:
    assert sum(claim.in_readme for claims in SECTIONS.values() for claim in claims) == 6


def test_each_script_has_a_claim_in_the_section_of_its_room() -> None:
    assert {f"{room}/{one.script}" for (room, _), claims in SECTIONS.items() for one in claims} == SCRIPTS


def test_make_bench_leaves_out_only_the_scripts_of_the_list() -> None:
    every = {name.rpartition("/")[2].removesuffix(".py") for name in SCRIPTS}
    left_out = every - {path.stem for path in chosen([])}
    assert left_out == set(DOCUMENT["only_by_name"])
    assert [path.stem for path in chosen(["tiny_text"])] == ["tiny_text"]


def test_no_bar_is_an_absolute_time() -> None:
    """Seconds and rates depend on the machine. They stand under `measured`; a claim that is not judged has the bar
    `shown`.
    """
    assert [one.claim for claims in SECTIONS.values() for one in claims if has_time(one.bar)] == []


def test_a_row_says_that_its_bar_is_missed() -> None:
    row = Claim(
        claim="c", measured="2 s", bar="≤ 1 s", missed="by 1 s", date="2026-11-28", script="a.py"
    ).row()
    assert row == "| c (2026-11-28) | 2 s | | ≤ 1 s: **missed** by 1 s | `a.py` |\n"
