"""A verdict follows from its findings, survives storage, and reads as a person needs it."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ml_assets.data.validation.verdict import Finding, Verdict, table_rows

findings = st.builds(
    Finding,
    rule=st.text(),
    column=st.none() | st.text(),
    severity=st.sampled_from(["block", "warn"]),
    measured=st.text(),
    limit=st.text(),
    failing_rows=st.integers(0, 10**9),
    examples=st.lists(st.text(), max_size=5).map(tuple),
    explanation=st.text(),
)

UNKNOWN = Finding(
    rule="unknown_category",
    column="carrier",
    measured="'ZZ' (3 rows)",
    limit="one of 16 values",
    failing_rows=3,
    examples=("'ZZ' in row 12",),
    explanation="Add it or fix the source.",
)
FEW_ROWS = Finding(rule="volume", severity="warn", measured="700 rows", limit="±20%", explanation="Look.")


def verdict(*some: Finding) -> Verdict:
    return Verdict.of(
        "datasets/flights", "2013-01-01", some, rows=842, content_digest="c", contract_digest="r"
    )


@given(st.lists(findings, max_size=4))
def test_verdict_survives_storage(some: list[Finding]) -> None:
    one = verdict(*some)
    assert Verdict.from_json(one.to_json()) == one


@given(st.lists(findings, max_size=4))
def test_one_blocking_finding_rejects(some: list[Finding]) -> None:
    severities = {finding.severity for finding in some}
    expected = "rejected" if "block" in severities else "warned" if severities else "passed"
    assert verdict(*some).status == expected
    assert verdict(*some).blocks == (expected == "rejected")


def test_explanation_names_partition_rule_rows_and_remedy() -> None:
    for name, some in (("rejected", [FEW_ROWS, UNKNOWN]), ("passed", [])):
        golden = Path(__file__).parent / f"golden/{name}_verdict.txt"
        assert verdict(*some).explain() == golden.read_text().removesuffix("\n")


def test_table_shows_what_blocks_first() -> None:
    first, second = table_rows("2013-01-01", [FEW_ROWS, UNKNOWN])
    assert tuple(first) == (
        "partition",
        "rule",
        "column",
        "severity",
        "found",
        "expected",
        "rows",
        "examples",
        "remedy",
    )
    assert (first["rule"], first["rows"], first["examples"]) == ("unknown_category", 3, "'ZZ' in row 12")
    assert (second["rule"], second["column"]) == ("volume", "")
