"""The section of a SQL source without a server: bounds in queries, keys, the version of the code."""

import pytest

from ml_assets.components import Dataset
from ml_assets.components.documents import attribute_faults
from ml_assets.data.sources.sql_source import SqlSource
from ml_assets_tests.sources.sales import DATASET

BOUNDS = [
    ("SELECT 1 WHERE a >= :first AND a < :end", {"first", "end"}),
    ("SELECT ':first', \":end\", a::end, $$ :first $$ -- :end\n, /* :end */ :first", {"first"}),
    ("SELECT 'it''s :first' || x::first, $q$ $$ :end $q$", set[str]()),
    ("SELECT :firsts, a:end", {"end"}),
]


@pytest.mark.parametrize(("query", "bounds"), BOUNDS)
def test_bounds_are_found_outside_texts_names_and_comments(query: str, bounds: set[str]) -> None:
    assert SqlSource(kind="sql", url_env="URL", query=query).bounds == bounds


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"url_env": "URL"}, "needs either `table` or `query`"),
        ({"url_env": "URL", "table": "a", "query": "b"}, "needs either `table` or `query`"),
        ({"url_env": "URL", "table": "sales; DROP TABLE sales"}, "should match pattern"),
        (
            {"url_env": "postgresql://ada:hunter2@db/sales", "table": "a"},
            "a credential never stands in a file",
        ),
        ({"url": "postgresql://ada:hunter2@db/sales", "table": "a"}, "did you mean 'url_env'?"),
    ],
)
def test_wrong_sections_are_refused_and_never_repeat_a_password(source: dict[str, str], said: str) -> None:
    faults = attribute_faults(Dataset.get_model_cls(), DATASET | {"source": {"kind": "sql", **source}})
    assert [words for _, words in faults if said in words]
    assert "hunter2" not in str(faults)


def test_the_code_version_follows_the_rows_and_not_the_credentials() -> None:
    section = SqlSource(kind="sql", url_env="URL", table="sales")
    assert section.code_version == SqlSource(kind="sql", url_env="OTHER", table="sales").code_version
    assert section.code_version != SqlSource(kind="sql", url_env="URL", table="sale").code_version
