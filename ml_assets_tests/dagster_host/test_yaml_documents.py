"""Documents read by libyaml are those that Dagster reads: values, positions, and the messages of faults."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from dagster_shared.yaml_utils import parse_yamls_with_source_position
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.dagster_host.yaml_documents import documents_in, from_yaml, to_yaml
from ml_assets.foundation.checkout import ROOT

_WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.dates() | _WORDS,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(_WORDS, below, max_size=4),
    max_leaves=20,
)


def _both(text: str, folder: Path) -> tuple[Any, Any]:
    """Return what libyaml and Dagster read, or the message and line of each refusal."""
    file = folder / "defs.yaml"
    file.write_text(text, encoding="utf-8")

    def refused(read: Any) -> Any:
        try:
            return list(read())
        except yaml.YAMLError as error:
            return str(error)

    return refused(lambda: documents_in(file)), refused(
        lambda: parse_yamls_with_source_position(text, str(file))
    )


@given(st.lists(_VALUES, min_size=1, max_size=3), st.booleans(), st.integers(1, 3))
def test_random_documents_are_those_of_dagster(values: list[Any], in_flow: bool, copies: int) -> None:
    text = yaml.safe_dump_all(values * copies, default_flow_style=in_flow, allow_unicode=True)
    with TemporaryDirectory() as folder:
        ours, dagsters = _both(text, Path(folder))
    assert ours == dagsters


@pytest.mark.parametrize("file", sorted((ROOT / "ml_assets" / "defs").rglob("defs.yaml")), ids=str)
def test_declared_pipelines_are_those_of_dagster(file: Path, tmp_path: Path) -> None:
    ours, dagsters = _both(file.read_text(), tmp_path)
    assert ours
    assert ours == dagsters


@pytest.mark.parametrize(
    "text",
    [
        "a: [1, 2\nb: 3\n",
        "a: 1\n b: 2\n",
        "a: 'open\n",
        "a: *nowhere\n",
        "- a\nb: 1\n",
        "a:\tb: c\n",
        "a: \x07\n",
        "&all [*all]\n",
    ],
)
def test_a_fault_has_the_message_of_dagsters_parser(text: str, tmp_path: Path) -> None:
    ours, dagsters = _both(text, tmp_path)
    assert ours == dagsters
    assert isinstance(ours, str)


def test_anchors_merges_and_comments_are_read_as_dagster_does(tmp_path: Path) -> None:
    text = "base: &base {a: 1, b: [x, y]} # of all\nown:\n  <<: *base\n  b: *base\nnumber: 1_000\nday: 2024-01-01\n"
    ours, dagsters = _both(text, tmp_path)
    assert ours == dagsters
    assert ours[0].value["day"] == "2024-01-01"


@given(_VALUES)
def test_values_survive_as_text(value: Any) -> None:
    assert from_yaml(to_yaml(value)) == value
