"""Declarations that would make a model lie are refused when the files are read, at the line that says so."""

import pytest

from ml_assets.components.declarations import DeclarationRefused
from ml_assets_tests.components.declared import DECLARED, load

NUMERIC = "numeric: [promotion, price, season_sin, season_cos, units_1w, units_2w, units_3w, units_4w, units_mean_4w]"


def refused(right: str, wrong: str) -> tuple[str, int, str]:
    """The declarations with `wrong` in place of `right`, and line and sentence of their only fault."""
    assert right in DECLARED
    text = DECLARED.replace(right, wrong, 1)
    with pytest.raises(DeclarationRefused) as error:
        load(text)
    (said,) = str(error.value).splitlines()
    place, _, sentence = said.partition(" ")
    return text, int(place.rstrip(":").rpartition(":")[2]), sentence


def line_of(text: str, marked: str) -> int:
    """Number of the line where `marked` begins first."""
    return text.partition(marked)[0].count("\n") + 1


INPUTS = [
    pytest.param(
        NUMERIC,
        "numeric: [price, units]",
        "numeric:",
        "attributes.features.numeric: 'units' is the label, which nobody knows when the model is asked: take it out of "
        "numeric",
        id="label as a number",
    ),
    pytest.param(
        "categorical: [store, product]",
        "categorical: [store, label_known_at]",
        "categorical:",
        "attributes.features.categorical: 'label_known_at' is the label's label_known_at, which nobody knows when the "
        "model is asked: take it out of categorical",
        id="moment of the label as a category",
    ),
    pytest.param(
        "    label: units\n",
        "    label: units\n    sample: {column: units, decode: ml_assets.defs.store_demand.model.build}\n",
        "sample:",
        "attributes.features.sample.column: 'units' is the label, which nobody knows when the model is asked: take it "
        "out of sample.column",
        id="label as a sample",
    ),
    pytest.param(
        "labels: [units, label_known_at]",
        "labels: [units, units_1w, label_known_at]",
        "numeric:",
        "store_demand names 'units_1w' in features.numeric, and features/sales_features lists it in `labels`: nobody "
        "knows it when the model is asked. Take it out of features.numeric",
        id="another label of the table",
    ),
    pytest.param(
        "baseline: {groups: [product, store]}",
        "baseline: {groups: [product, units]}",
        "baseline:",
        "store_demand names 'units' in evaluation.baseline.groups, and features/sales_features lists it in `labels`: "
        "nobody knows it when the model is asked. Take it out of evaluation.baseline.groups",
        id="label as a group of the baseline",
    ),
    pytest.param(
        "labels: [units, label_known_at]",
        "labels: [label_known_at]",
        "label: units",
        "store_demand names 'units' as features.label, and features/sales_features does not list it in `labels`: add "
        "it there, so that no model takes it as an input",
        id="label that the table does not list",
    ),
    pytest.param(
        "labels: [units, label_known_at]",
        "labels: [unitz, label_known_at]",
        "labels:",
        "attributes.labels: labels 'unitz' is no column of the contract: did you mean 'units'?",
        id="label that is no column",
    ),
    pytest.param(
        NUMERIC,
        "numeric: [price, promotion, price]",
        "numeric:",
        "attributes.features.numeric: 'price' is listed twice: a model reads a column once",
        id="number twice",
    ),
    pytest.param(
        "categorical: [store, product]",
        "categorical: [store, store]",
        "categorical:",
        "attributes.features.categorical: 'store' is listed twice: a model reads a column once",
        id="category twice",
    ),
    pytest.param(
        NUMERIC,
        "numeric: [price, product]",
        "numeric:",
        "store_demand names 'product' in features.numeric, which takes a number, and its dtype is string: list it in "
        "categorical, or cast it in the feature function",
        id="text as a number",
    ),
    pytest.param(
        NUMERIC,
        "numeric: [price, predicted_at]",
        "numeric:",
        "store_demand names 'predicted_at' in features.numeric, which takes a number, and its dtype is datetime: list "
        "it in categorical, or cast it in the feature function",
        id="moment as a number",
    ),
    pytest.param(
        "label_known_at: label_known_at",
        "label_known_at: partition_date",
        "label_known_at: partition",
        "store_demand names 'partition_date' in features.label_known_at, which takes datetime, and its dtype is date: "
        "name the column with the moment in UTC",
        id="day as the moment of the label",
    ),
    pytest.param(
        "{at: closed_at, hides: [units]}",
        "{at: closed, hides: [units]}",
        "closed,",
        "features/sales_features names 'closed' in inputs.0.known.0.at, which is no column of datasets/sales: did you "
        "mean 'closed_at'?",
        id="rule at no column",
    ),
    pytest.param(
        "{at: closed_at, hides: [units]}",
        "{at: closed_at, hides: [unit]}",
        "hides: [unit]",
        "features/sales_features names 'unit' in inputs.0.known.0.hides, which is no column of datasets/sales: did you "
        "mean 'units'?",
        id="rule hides no column",
    ),
    pytest.param(
        "{at: closed_at, hides: [units]}",
        "{at: week, hides: [units]}",
        "at: week",
        "features/sales_features names 'week' in inputs.0.known.0.at, which takes datetime, and its dtype is date: "
        "name the column with the moment in UTC",
        id="rule at a day",
    ),
    pytest.param(
        "- {name: predicted_at, dtype: datetime}",
        "- {name: predicted_at, dtype: datetime, nullable: true}",
        "contract:\n    key: [partition_date",
        "attributes.contract: predicted_at 'predicted_at' must be a datetime and never null, and is a nullable "
        "datetime by the contract",
        id="moment that may be null",
    ),
    pytest.param(
        "- {name: predicted_at, dtype: datetime}",
        "- {name: asked_at, dtype: datetime}",
        "contract:\n    key: [partition_date",
        "attributes.contract: predicted_at 'predicted_at' is no column of the contract; there are: asked_at",
        id="no moment of prediction",
    ),
]


def test_a_report_cannot_slice_by_a_sensitive_column() -> None:
    together = "{names: [store, product], dtype: string}"
    text, line, said = refused(together, together.replace("}", ", sensitive: true}"))
    assert said.startswith(
        "store_demand names 'product' in evaluation.slices, and the contract of features/sales_features"
    )
    assert line == line_of(text, "slices:")


@pytest.mark.parametrize(("right", "wrong", "marked", "sentence"), INPUTS)
def test_columns_that_cannot_be_what_they_are_named_as(
    right: str, wrong: str, marked: str, sentence: str
) -> None:
    text, line, said = refused(right, wrong)
    assert said.startswith(sentence)
    assert line == line_of(text, marked)
