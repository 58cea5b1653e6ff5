"""Semantic versions: major for the schema, minor for the recipe, patch for the data."""

from hypothesis import given
from hypothesis import strategies as st

from ml_assets.model.release.promotion import SemanticVersion, next_version

NUMBERS = st.builds(SemanticVersion, st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
KNOWN = st.tuples(NUMBERS, st.sampled_from("ab"), st.sampled_from("xy"))


def test_the_first_version_is_1_0_0() -> None:
    assert str(next_version([], "a", "x")) == "1.0.0"


def test_each_kind_of_change_has_its_place() -> None:
    known = [(SemanticVersion(1, 2, 3), "a", "x")]
    assert str(next_version(known, "a", "x")) == "1.2.4"
    assert str(next_version(known, "a", "y")) == "1.3.0"
    assert str(next_version(known, "b", "x")) == "2.0.0"
    assert str(next_version(known, "b", "y")) == "2.0.0"


@given(
    st.lists(KNOWN, min_size=1, unique_by=lambda one: one[0]),
    st.sampled_from("ab"),
    st.sampled_from("xy"),
)
def test_a_new_version_is_above_all_others(
    known: list[tuple[SemanticVersion, str, str]], schema: str, recipe: str
) -> None:
    made = next_version(known, schema, recipe)
    assert all(made > one[0] for one in known)
    assert next_version(reversed(known), schema, recipe) == made


@given(NUMBERS)
def test_text_and_back(version: SemanticVersion) -> None:
    assert SemanticVersion.parse(str(version)) == version
