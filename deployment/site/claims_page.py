"""Tables of measured claims, made from `benchmarks/claims.toml`: docs/benchmarks.md and the rows of the README."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PAGE, _README = Path("docs", "benchmarks.md"), Path("README.md")
_HEAD = "| claim | measured | compared with, in the same run | bar | script |\n|---|---|---|---|---|\n"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim with the figures of its last documented run, as they stand on the page."""

    claim: str
    measured: str
    bar: str
    script: str
    """File name; its folder is the section's room of `benchmarks/claims`."""
    compared_with: str = ""
    """Peers, measured in the same run."""
    missed: str | None = None
    """Amount or circumstance of a missed bar; stands after the word `missed`."""
    date: str | None = None
    """Day of the run, if it is not one of the file's `dates`."""
    in_readme: bool = False

    def row(self) -> str:
        """Return the row of a table."""
        cells = (
            self.claim + (f" ({self.date})" if self.date else ""),
            self.measured,
            self.compared_with,
            self.bar + (f": **missed** {self.missed}" if self.missed else ""),
            f"`{self.script}`",
        )
        return re.sub(" +", " ", f"| {' | '.join(cells)} |\n")


def sections(document: dict[str, Any]) -> dict[tuple[str, str], list[Claim]]:
    """Return the claims of each section, by its room and title."""
    return {
        (section["room"], section["title"]): [Claim(**row) for row in section["claim"]]
        for section in document["section"]
    }


def claims_tables(root: Path) -> dict[Path, str]:
    """Return the text of the page and of the README with its rows, by path below `root`, the root of the checkout."""
    document = tomllib.loads((root / "benchmarks" / "claims.toml").read_text())
    by_section = sections(document)
    every = [claim for claims in by_section.values() for claim in claims]
    missed = sum(claim.missed is not None for claim in every)
    by_name = ", ".join(f"`{name}.py`" for name in document["only_by_name"])
    page = f"""# Benchmarks

`make render` makes this page from `benchmarks/claims.toml`. A script of `benchmarks/claims` prints
each figure, with its bar and its peers. `make bench` runs the scripts and fails if a figure misses its
bar. It prints a line for each claim, with the command that measures only this claim. The full output
is in `build/bench`.

{document["machine"]}, {document["dates"]}, or the date of a row; the raw output is in
[benchmarks/results](../benchmarks/results). {missed} of the {len(every)} rows miss their bar: the
column says how. No bar is an absolute time, because seconds depend on the machine: a bar is a ratio to
a peer or to a yardstick of the same run, or a property of the result.

Scripts that need servers, a cluster, packages of their own or many minutes run only by name
(`make bench ARGS=lake_servers`): {by_name}.
"""
    for (_, title), claims in by_section.items():
        page += f"\n## {title}\n\n{_HEAD}{''.join(claim.row() for claim in claims)}"
    rows = "".join(claim.row() for claim in every if claim.in_readme)
    table = re.compile(re.escape(_HEAD) + r"(\|.*\n)+")
    return {_PAGE: page, _README: table.sub(lambda _: _HEAD + rows, (root / _README).read_text())}
