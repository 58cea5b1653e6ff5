"""The version in `pyproject.toml` and the changelog: dated entries of at most two lines after 0.1.0."""

import re
from datetime import date, datetime

import pytest

from ml_assets.foundation.checkout import ROOT, version

CHANGELOG = (ROOT / "docs" / "changelog.md").read_text()
_ENTRY = re.compile(r"\* (\d{4}-\d{2}-\d{2}): \S")
_RELEASE = re.compile(r"## (\d+\.\d+\.\d+), (\d{4}-\d{2}-\d{2})")
FIRST = "## 0.1.0, 2026-11-28"
"""The only version that the changelog describes as a whole."""


def faults(changelog: str) -> list[str]:
    """Return the lines above the section of 0.1.0 that break the form, each with its fault."""
    above, first, _ = changelog.partition(FIRST)
    if not first:
        return [f"{FIRST}: missing"]
    lines = above[above.find("\n## ") :].splitlines()
    found: list[str] = []
    length, newest = 0, date.max
    for line in filter(None, lines):
        entry, release = _ENTRY.match(line), _RELEASE.fullmatch(line)
        if not (entry or release or line == "## Unreleased" or line.startswith("  ")):
            found.append(f"{line}: form")
        length = length + 1 if line.startswith("  ") else 1
        if length > 2:
            found.append(f"{line}: more than two lines")
        if dated := entry or release:
            day = datetime.strptime(dated[dated.re.groups], "%Y-%m-%d").date()  # noqa: DTZ007 - a date
            if day > newest:
                found.append(f"{line}: newest first")
            newest = day
    return found


def test_entries_are_dated_and_short() -> None:
    assert faults(CHANGELOG) == []


@pytest.mark.parametrize(
    ("above", "fault"),
    [
        ("* 2026-12-02: `plan` is faster.\n* 2026-12-01: A setting\n  of two lines.", None),
        ("* `plan` is faster.", "form"),
        ("`plan` is faster.", "form"),
        ("* 2026-12-01: One.\n  Two.\n  Three.", "more than two lines"),
        ("* 2026-12-01: Older.\n* 2026-12-02: Newer.", "newest first"),
        ("* 2027-02-01: Newer.\n\n## 0.2.0, 2027-01-31\n\n* 2027-01-30: Older.", None),
        ("* 2027-01-30: Newer.\n\n## 0.2.0, 2027-01-31", "newest first"),
        ("## 0.2.0, not released yet", "form"),
    ],
)
def test_a_fault_of_the_changelog_is_found(above: str, fault: str | None) -> None:
    found = faults(f"# Changes\n\nIntro.\n\n## Unreleased\n\n{above}\n\n{FIRST}\n\n* **Tables.** Many.\n")
    assert [one.rpartition(": ")[2] for one in found] == [fault] * (fault is not None)


def test_the_newest_release_of_the_changelog_is_the_version() -> None:
    (newest, *_) = [found[1] for line in CHANGELOG.splitlines() if (found := _RELEASE.fullmatch(line))]
    assert newest == version()
