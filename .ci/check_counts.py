"""Check that every group of tests ran completely. Read pytest's JUnit file; print a line per group.

A group is a folder of `ml_assets_tests` (`.` for files directly in it). Fail if a test was skipped, or if a group has
fewer tests than `expected_counts.toml` requires: otherwise tests that are no longer collected look like success. More
tests than expected are fine. Raise the numbers after adding tests, by hand or with
`check_counts.py TESTS.xml expected_counts.toml --raise`.

The table `at_least` is for `make test`; every other tier has a table of its name (`--table journeys`). If the table has
the name of a folder, such as `servers`, each folder inside is a group (`.` for files directly in it).
"""

import argparse
import collections
import tomllib
import xml.etree.ElementTree
from pathlib import Path

EVERYDAY = "at_least"
"""Table of what `make test` runs."""


def group_of(classname: str, table: str = EVERYDAY) -> str:
    """Return `lake` for `ml_assets_tests.lake.test_merge.TestX`, and `.` for `ml_assets_tests.test_graph`. In the table
    `servers`, do the same with the rest of the name after `ml_assets_tests.servers`.
    """
    _, first, second, *_ = [*classname.split("."), ""]
    folder = second if first == table else first
    return "." if folder.startswith("test_") else folder


def main(junit: Path, expected: Path, *, table: str = EVERYDAY, raises: bool = False) -> int:
    """Compare the counts, and first write higher numbers to `expected` if `raises`. Return the exit status."""
    cases = list(xml.etree.ElementTree.parse(junit).getroot().iter("testcase"))
    found = collections.Counter(group_of(case.get("classname", ""), table) for case in cases)
    skipped = [
        f"{case.get('classname')}::{case.get('name')}" for case in cases if case.find("skipped") is not None
    ]
    tables: dict[str, dict[str, int]] = tomllib.loads(expected.read_text())
    least = tables.get(table, {})
    if raises:
        least = {
            group: max(found[group], least.get(group, 0)) for group in sorted(found.keys() | least.keys())
        }
        comments = [line for line in expected.read_text().splitlines() if line.startswith("#")]
        written = comments
        for name, numbers in (tables | {table: least}).items():
            written = [*written, f"[{name}]", *(f'"{group}" = {number}' for group, number in numbers.items())]
        expected.write_text("\n".join([*written, ""]))

    problems = [f"skipped, but no test may be skipped: {name}" for name in skipped]
    for group in sorted(found.keys() | least.keys()):
        wanted = least.get(group)
        print(f"{group:<14}{found[group]:>5} tests (at least {wanted})")
        if wanted is None:
            problems.append(f"group {group!r} is not in {expected}: run with --raise to add it")
        elif found[group] < wanted:
            problems.append(f"group {group!r} ran {found[group]} tests, expected at least {wanted}")
    print("\n".join(problems) or "No test was skipped and no group is short.")
    return 1 if problems else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("junit", type=Path)
    parser.add_argument("expected", type=Path)
    parser.add_argument("--table", default=EVERYDAY)
    parser.add_argument("--raise", action="store_true", dest="raises")
    raise SystemExit(main(**vars(parser.parse_args())))
