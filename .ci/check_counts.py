"""Did every group of tests run, and run whole? Reads pytest's JUnit file; prints one line per group.

A group is a folder of `ml_assets_tests` (`.` for files directly in it). Fails where a test was skipped, or
where a group has fewer tests than `expected_counts.toml` says: tests that stop being collected look like
success otherwise. More tests than expected is fine; raise the numbers when adding some, by hand or with
`check_counts.py TESTS.xml expected_counts.toml --raise`.
"""

import collections
import sys
import tomllib
import xml.etree.ElementTree
from pathlib import Path


def group_of(classname: str) -> str:
    """`ml_assets_tests.lake.test_merge.TestX` → `lake`; `ml_assets_tests.test_graph` → `.`."""
    folder = classname.split(".")[1]
    return "." if folder.startswith("test_") else folder


def main(junit: Path, expected: Path, *, raises: bool = False) -> int:
    """Compare, after writing higher numbers to `expected` where it `raises` them; return the exit status."""
    cases = list(xml.etree.ElementTree.parse(junit).getroot().iter("testcase"))
    found = collections.Counter(group_of(case.get("classname", "")) for case in cases)
    skipped = [
        f"{case.get('classname')}::{case.get('name')}" for case in cases if case.find("skipped") is not None
    ]
    least: dict[str, int] = tomllib.loads(expected.read_text())["at_least"]
    if raises:
        least = {
            group: max(found[group], least.get(group, 0)) for group in sorted(found.keys() | least.keys())
        }
        comments = [line for line in expected.read_text().splitlines() if line.startswith("#")]
        numbers = [f'"{group}" = {number}' for group, number in least.items()]
        expected.write_text("\n".join([*comments, "[at_least]", *numbers, ""]))

    problems = [f"skipped, but nothing here may be: {name}" for name in skipped]
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
    raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2]), raises="--raise" in sys.argv[3:]))
