"""Declarations that would make a model lie are refused when the files are read, at the line that says so."""

import pytest

from ml_assets.components.declarations import DeclarationRefused
from ml_assets_tests.components.defs_sandbox import DECLARED, load

NUMERIC = "numeric: [promotion, price, season_sin, season_cos, units_1w, units_2w, units_3w, units_4w, units_mean_4w]"


def refused(right: str, wrong: str) -> tuple[str, int, str]:
    """The declarations with `wrong` in place of `right`, and line and sentence of their only fault."""
    declared = DECLARED.replace("holdout: 8}", "holdout: 8, embargo: 0}")
    assert right in declared
    text = declared.replace(right, wrong, 1)
    with pytest.raises(DeclarationRefused) as error:
        load(text)
    (said,) = str(error.value).splitlines()
    place, _, sentence = said.partition(" ")
    return text, int(place.rstrip(":").rpartition(":")[2]), sentence


def line_of(text: str, marked: str) -> int:
    """Number of the line where `marked` begins first."""
    return text.partition(marked)[0].count("\n") + 1


_FROM_CONTRACT_TO_LABEL = DECLARED[
    DECLARED.index("      - {name: label_known_at, dtype: datetime}\n---") : DECLARED.index(
        "    label: units\n"
    )
]
_FROM_OBJECTIVE_ON = DECLARED[DECLARED.index("    objective: regression\n") :]
_FROM_MODEL_ON = DECLARED[DECLARED.index("  model:\n    function: ml_assets.defs.store_demand.model.build") :]
_CLASSES = (
    "    objective: multiclass\n    bootstrap_unit: partition_date\n    gates:\n"
    "      - {name: beats the baseline, metric: logloss, better_than: baseline}\n"
)
_FROM_UNITS = DECLARED[DECLARED.index("      - {name: units, dtype: float32, ge: 0") :].replace(
    "holdout: 8}", "holdout: 8, embargo: 0}"
)
_SCRIPT = "  model: {script: ml_assets.defs.store_demand.model}\n  training: {workers: 1}\n  evaluation:\n"
INPUTS = [
    pytest.param(
        _FROM_OBJECTIVE_ON,
        _CLASSES,
        "    label: units",
        "store_demand names 'units' in features.label, which takes a text, a whole number or a boolean, and its dtype "
        "is float32: cast it in the feature function, or choose objective regression",
        id="number with a fraction as a class",
    ),
    pytest.param(
        _FROM_UNITS,
        _FROM_UNITS.replace("float32, ge: 0, description: The label.", "string, sensitive: true").replace(
            _FROM_OBJECTIVE_ON, _CLASSES
        ),
        "    label: units",
        "store_demand names 'units' in features.label, and the contract of features/sales_features marks it as "
        "sensitive: the report would show its classes. Return other words",
        id="sensitive classes",
    ),
    pytest.param(
        _FROM_CONTRACT_TO_LABEL,
        _FROM_CONTRACT_TO_LABEL.replace("\n---", "\n      - {name: ordered_on, dtype: date}\n---", 1)
        + "    partition_date: ordered_on\n",
        "    partition_date: ordered_on",
        "store_demand names 'ordered_on' in features.partition_date, and partitions of features/sales_features are by "
        "'partition_date': rows of the holdout could be trained on",
        id="another day as the partition",
    ),
    pytest.param(
        NUMERIC,
        "numeric: [price, units]",
        "numeric:",
        "attributes.features.numeric: 'units' is the label, which is unknown when the model predicts: remove it from "
        "numeric",
        id="label as a number",
    ),
    pytest.param(
        "categorical: [store, product]",
        "categorical: [store, label_known_at]",
        "categorical:",
        "attributes.features.categorical: 'label_known_at' is the label's label_known_at, which is unknown when the "
        "model predicts: remove it from categorical",
        id="moment of the label as a category",
    ),
    pytest.param(
        "    label: units\n",
        "    label: units\n    weight: price\n",
        "numeric:",
        "attributes.features.numeric: 'price' is the weight of a row (features.weight), which a model does not read: "
        "remove it from numeric",
        id="weight as a number",
    ),
    pytest.param(
        "    label: units\n",
        "    label: units\n    weight: predicted_at\n",
        "    weight: predicted_at",
        "store_demand names 'predicted_at' in features.weight, which takes a number, and its dtype is datetime: return "
        "a number from 0 from the feature function",
        id="moment as a weight",
    ),
    pytest.param(
        "    label: units\n",
        "    label: units\n    weight: revenues\n",
        "    weight: revenues",
        "store_demand names 'revenues' in features.weight, which is not a column of features/sales_features",
        id="weight that is no column",
    ),
    pytest.param(
        "    label: units\n",
        "    label: units\n    blob: {column: units, decode: ml_assets.defs.store_demand.model.build}\n",
        "blob:",
        "attributes.features.blob.column: 'units' is the label, which is unknown when the model predicts: remove "
        "it from blob.column",
        id="label as a blob",
    ),
    pytest.param(
        "labels: [units, label_known_at]",
        "labels: [units, units_1w, label_known_at]",
        "numeric:",
        "store_demand names 'units_1w' in features.numeric, and features/sales_features lists it in `labels`: it is "
        "unknown when the model predicts. Remove it from features.numeric",
        id="another label of the table",
    ),
    pytest.param(
        "baseline: {groups: [product, store],",
        "baseline: {groups: [product, units],",
        "baseline:",
        "store_demand names 'units' in evaluation.baseline.groups, and features/sales_features lists it in `labels`: "
        "it is unknown when the model predicts. Remove it from evaluation.baseline.groups",
        id="label as a group of the baseline",
    ),
    pytest.param(
        "entity: [store, product]}\n    gates:",
        "entity: [store, units]}\n    gates:",
        "baseline:",
        "store_demand names 'units' in evaluation.baseline.entity, and features/sales_features lists it in `labels`: "
        "it is unknown when the model predicts. Remove it from evaluation.baseline.entity",
        id="label as an entity of the baseline",
    ),
    pytest.param(
        "entity: [store, product]}\n    gates:",
        "entity: [store, product], predicted_at: label_known_at}\n    gates:",
        "baseline:",
        "store_demand names 'label_known_at' in evaluation.baseline.predicted_at, and features/sales_features lists it "
        "in `labels`: it is unknown when the model predicts. Remove it from evaluation.baseline.predicted_at",
        id="moment of the label as that of the prediction",
    ),
    pytest.param(
        "entity: [store, product]}\n    gates:",
        "entity: [store, product], predicted_at: week}\n    gates:",
        "baseline:",
        "store_demand names 'week' in evaluation.baseline.predicted_at, which is not a column of "
        "features/sales_features",
        id="moment of the prediction that is no column",
    ),
    pytest.param(
        "labels: [units, label_known_at]",
        "labels: [label_known_at]",
        "label: units",
        "store_demand names 'units' as features.label, and features/sales_features does not list it in `labels`: add "
        "it there, so that no model reads it as an input",
        id="label that the table does not list",
    ),
    pytest.param(
        "labels: [units, label_known_at]",
        "labels: [unitz, label_known_at]",
        "labels:",
        "attributes.labels: labels 'unitz' is not a column of the contract: did you mean 'units'?",
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
        "{column: closed_at, columns: [units]}",
        "{column: closed, columns: [units]}",
        "closed,",
        "features/sales_features names 'closed' in inputs.0.known_at.0.column, which is not a column of "
        "datasets/sales: did you mean 'closed_at'?",
        id="rule at no column",
    ),
    pytest.param(
        "{column: closed_at, columns: [units]}",
        "{column: closed_at, columns: [unit]}",
        "columns: [unit]",
        "features/sales_features names 'unit' in inputs.0.known_at.0.columns, which is not a column of datasets/sales: "
        "did you mean 'units'?",
        id="rule hides no column",
    ),
    pytest.param(
        "{column: closed_at, columns: [units]}",
        "{column: week, columns: [units]}",
        "column: week",
        "features/sales_features names 'week' in inputs.0.known_at.0.column, which takes datetime, and its dtype is "
        "date: name the column with the moment in UTC",
        id="rule at a day",
    ),
    pytest.param(
        "- {name: predicted_at, dtype: datetime}",
        "- {name: predicted_at, dtype: datetime, nullable: true}",
        "contract:\n    primary_key: [partition_date",
        "attributes.contract: predicted_at 'predicted_at' must be a datetime and never null, and is a nullable "
        "datetime by the contract",
        id="moment that may be null",
    ),
    pytest.param(
        "- {name: predicted_at, dtype: datetime}",
        "- {name: asked_at, dtype: datetime}",
        "contract:\n    primary_key: [partition_date",
        "attributes.contract: predicted_at 'predicted_at' is not a column of the contract; there are: asked_at",
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


_OWN = "ml_assets_tests.components.objectives_pipeline"


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (f"{{function: {_OWN}.mising, better: lower}}", "has no 'mising'; did you mean 'missing'?"),
        (f"{{function: {_OWN}.levels, better: lower}}", "must take (label, prediction, group, weight)"),
        (
            f"{{function: {_OWN}.missing, better: lower, group: shop}}",
            "names 'shop' in evaluation.metrics, which is",
        ),
        (f"{{function: {_OWN}.missing, better: less}}", "'less' should be 'higher' or 'lower'"),
    ],
)
def test_an_own_metric_that_nothing_can_call_is_refused(written: str, sentence: str) -> None:
    """The function is looked up in the text of its file; only the step that evaluates imports it."""
    text, line, said = refused("    slices: [product]", f"    slices: [product]\n    metrics: [{written}]")
    assert sentence in said
    assert line == line_of(text, "metrics:")


def test_definitions_do_not_import_an_own_metric() -> None:
    own = "metrics: [{function: ml_assets_tests.components.unimportable_metric.cost, better: lower}]"
    load(DECLARED.replace("    slices: [product]", f"    slices: [product]\n    {own}", 1))


@pytest.mark.parametrize(
    ("slices", "written", "sentence"),
    [
        (
            "product",
            "{product: NO}",
            "product=False, which YAML reads as bool; product is of type String, so no row",
        ),
        ("product", "{product: 47}", "can match: write '47' in quotes if that is the text"),
        ("promotion", "{promotion: 'yes'}", "promotion=yes; promotion is of type"),
        ("price", "{price: true}", "price=True, which YAML reads as bool; price is of type Float"),
        ("{column: partition_date, by: month}", "{month: 2023-13}", "month is a month such as '2013-11'"),
        (
            "{column: price, by: month}",
            "{month: '2023-11'}",
            "cuts 'price' by month, and it is of type Float32, not a date",
        ),
    ],
)
def test_a_gate_on_a_slice_value_that_the_column_cannot_hold(
    slices: str, written: str, sentence: str
) -> None:
    rule = "better_than: baseline}"
    declared = DECLARED.replace("slices: [product]", f"slices: [{slices}]", 1)
    text = declared.replace(rule, f"better_than: baseline, slice: {written}}}", 1)
    with pytest.raises(DeclarationRefused) as error:
        load(text)
    (said,) = str(error.value).splitlines()
    assert sentence in said
    marked = "slices:" if "by month" in sentence else "slice: {"
    assert said.partition(" ")[0].endswith(f"/demand/defs.yaml:{line_of(text, marked)}:")


def test_slice_values_of_their_columns_types_load() -> None:
    for slices, written in (
        ("product", "{product: 'NO'}"),
        ("price", "{price: 2}"),
        ("product", "{product: '*'}"),
    ):
        text = DECLARED.replace("slices: [product]", f"slices: [{slices}]", 1)
        load(text.replace("better_than: baseline}", f"better_than: baseline, slice: {written}}}", 1))


@pytest.mark.parametrize(("right", "wrong", "marked", "sentence"), INPUTS)
def test_columns_that_cannot_be_what_they_are_named_as(
    right: str, wrong: str, marked: str, sentence: str
) -> None:
    text, line, said = refused(right, wrong)
    assert said.startswith(sentence)
    assert line == line_of(text, marked)


VALUES = [
    (
        "hidden: 32",
        "hiden: 32",
        "hiden",
        "model.hyperparameters.hiden: ml_assets.defs.store_demand.model.build has no "
        "argument 'hiden': did you mean 'hidden'?",
    ),
    (
        "hidden: 32",
        "hidden: .nan",
        "hidden",
        "model.hyperparameters.hidden.float: Input should be a finite number",
    ),
    (
        "learning_rate: 0.01",
        "learning_rate: .inf",
        "learning",
        "training.learning_rate: Input should be a finite number",
    ),
    (
        "epochs: 30",
        "weight_decay: -1",
        "weight_decay:",
        "training.weight_decay: Input should be greater than or equal to 0",
    ),
    (
        "epochs: 30",
        "stall_timeout_seconds: 0",
        "stall_timeout_seconds:",
        "training.stall_timeout_seconds: Input should be greater than 0",
    ),
    (
        "epochs: 30",
        "metrics_port: 65536",
        "metrics_port:",
        "training.metrics_port: Input should be less than 65536",
    ),
    (
        "    label: units",
        "    time_zone: Europe/Berln\n    label: units",
        "time_zone",
        "features.time_zone: 'Europe/Berln' is not a time zone: did you mean 'Europe/Berlin'?",
    ),
    (
        "    event_time: week",
        "    event_time: week\n    event_time_zone: Europe",
        "event_time_zone",
        "contract.event_time_zone: 'Europe' is not a time zone",
    ),
    (
        "    event_time: week",
        "    event_time: closed_at\n    event_time_zone: Asia/Tokyo",
        "  features:",
        "store_demand takes labels by midnight in UTC (features.time_zone), and the days of datasets/sales begin at "
        "midnight in Asia/Tokyo (contract.event_time_zone): write `time_zone: Asia/Tokyo`",
    ),
    (
        "  seed: 11",
        "  schedule: {cron: 0 3 * * *, time_zone: Mars/Phobos, latest: ml_assets.defs.store_demand.source.latest}",
        "schedule",
        "schedule.time_zone: 'Mars/Phobos' is not a time zone: write a name such as Europe/Berlin",
    ),
    (
        "  seed: 11",
        "  schedule: {cron: nightly, latest: ml_assets.defs.store_demand.source.latest}",
        "schedule",
        "schedule.cron: 'nightly' is not a cron schedule: write five fields",
    ),
    (
        "  name: store_demand",
        "  name: datasets",
        "name: datasets",
        "name: 'datasets' is the prefix of table names",
    ),
    (
        "  name: store_demand",
        "  name: lambda",
        "name: lambda",
        "name: 'lambda' is a word that Dagster reserves",
    ),
    (
        "  name: store_demand",
        f"  name: {'x' * 300}",
        "name: xx",
        "name: String should have at most 63 characters",
    ),
    (
        "  name: sales\n",
        f"  name: {'x' * 64}\n",
        "name: xx",
        "name: String should have at most 63 characters",
    ),
    (
        "  name: sales\n",
        "  name: Verkäufe\n",
        "name: Ver",
        "name: 'Verkäufe' may only contain A to Z",
    ),
    (
        "  group_name: store_demand",
        "  group_name: größe",
        "group_name: gr",
        "group_name: 'größe' may only contain A to Z",
    ),
    (
        "  group_name: store_demand",
        "  owners: [ada]",
        "owners",
        "owners.0: 'ada' is not an owner: write an e-mail address",
    ),
    (
        "'store_\\d\\d'",
        "'(?x)store_ # and a number'",
        "(?x)",
        "contract.columns.1: store: `pattern` '(?x)store_ # and a "
        "number' is not a regular expression: unclosed group",
    ),
    (
        "'store_\\d\\d'",
        "'a)|(?:b'",
        "a)|",
        "contract.columns.1: store: `pattern` 'a)|(?:b' is not a regular expression: unopened group",
    ),
    *(
        (
            "name: promotion, dtype: bool",
            f"name: {name}, dtype: bool",
            f"name: {name},",
            f"contract.columns.3: '{name}': a column needs a name that does not begin with _",
        )
        for name in ("_key", "_split", "_reason", "_row", "__partition")
    ),
    ("  seed: 11", "  seed: -1", "seed", "seed: Input should be greater than or equal to 0; found '-1'"),
    (
        "    objective:",
        "    seed: -1\n    objective:",
        "seed: -1",
        "evaluation.seed: Input should be greater than or",
    ),
    (
        "embargo: 0",
        "embargo: -1",
        "window",
        "window.embargo: Input should be greater than or equal to 0; found '-1'",
    ),
    (
        "embargo: 0",
        "embargo: 1000000",
        "window",
        "window.embargo: Input should be less than or equal to 36525",
    ),
    (
        "end: 2024-06-30",
        "end: 2022-06-30",
        "end: 2022",
        "partitions: start 2023-01-02 is after end 2022-06-30",
    ),
    (
        "  seed: 11",
        "  freshness: {fail_after_hours: 2, warn_after_hours: 3}",
        "freshness",
        "freshness: warn_after_hours 3 is not before fail_after_hours 2",
    ),
    (
        "  seed: 11",
        "  freshness: {fail_after_hours: .inf}",
        "freshness",
        "freshness.fail_after_hours: Input should be a finite number",
    ),
    (
        "memory: 3Gi",
        "memory: 3Gi, partitions: {2024-06-25: {nodes: 1}}",
        "partitions: {2024-06",
        "resources.partitions.2024-06-25: '2024-06-25' is not a weekly key: that day belongs to '2024-06-24'",
    ),
    (
        "nodes: 2, memory: 3Gi",
        "gpus: 2, memory: 3Gi",
        "gpus: 2, memory: 3Gi",
        "resources: resources.gpus 2 would be reserved and never used, as training.device is cpu: use gpus: 0, or",
    ),
    (
        DECLARED[DECLARED.index("    device: cpu") : DECLARED.index("memory: 3Gi")],
        "  resources: {gpus: 1, ",
        "gpus: 1, memory: 3Gi",
        "resources: resources.gpus 1 are fewer than the workers of a pod, training.workers 2 / resources.nodes 1 = 2, "
        "and a worker on the CPU would slow down the others: use gpus: 2, or 1 workers",
    ),
]


@pytest.mark.parametrize(("right", "wrong", "marked", "sentence"), VALUES)
def test_values_that_nothing_could_be_made_of(right: str, wrong: str, marked: str, sentence: str) -> None:
    text, line, said = refused(right, wrong)
    assert said.removeprefix("attributes").lstrip(".: ").startswith(sentence)
    assert line == line_of(text, marked)
