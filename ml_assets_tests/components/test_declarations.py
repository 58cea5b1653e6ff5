"""Faults of a `defs.yaml` are one line each: file, line, key, and the nearest right word."""

import re
from pathlib import Path

import pytest

import ml_assets.defs
from ml_assets.components.declarations import DeclarationRefused
from ml_assets_tests.components.defs_sandbox import DECLARED, load


@pytest.mark.parametrize(
    ("right", "wrong", "key", "hint"),
    [
        pytest.param("description:", "descripton:", "attributes.descripton", "description", id="top level"),
        pytest.param("cadence:", "cadense:", "attributes.partitions.cadense", "cadence", id="section"),
        pytest.param(
            "nullable:", "nulable:", "attributes.contract.columns.6.nulable", "nullable", id="column"
        ),
        pytest.param(
            "global_batch:", "global_bach:", "attributes.training.global_bach", "global_batch", id="training"
        ),
        pytest.param(
            "better_than:",
            "beter_than:",
            "attributes.evaluation.gates.0.beter_than",
            "better_than",
            id="gate",
        ),
        pytest.param("lookback:", "look_back:", "attributes.inputs.0.look_back", "lookback", id="input"),
    ],
)
def test_a_typo_in_a_key_is_one_line_with_file_line_and_nearest_key(
    right: str, wrong: str, key: str, hint: str
) -> None:
    text = DECLARED.replace(right, wrong, 1)
    line = next(number for number, said in enumerate(text.splitlines(), start=1) if wrong in said)
    with pytest.raises(DeclarationRefused) as refused:
        load(text)
    (said,) = str(refused.value).splitlines()
    place, _, rest = said.partition(" ")
    assert place.endswith(f"demand/defs.yaml:{line}")
    assert rest == f"{key}: unknown key '{wrong[:-1]}': did you mean '{hint}'?"


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        pytest.param(
            "cadence: weekly",
            "cadence: wekly",
            "'wekly' should be 'hourly', 'daily', 'weekly', 'monthly', 'quarterly' or 'yearly'",
            id="word",
        ),
        pytest.param(
            "components.FeatureTable",
            "components.FeatureTabel",
            "no component 'ml_assets.components.FeatureTabel': did you mean 'ml_assets.components.FeatureTable'?",
            id="component",
        ),
        pytest.param(
            "features.sales_features",
            "features.sales_feature",
            "ml_assets.defs.store_demand.features has no 'sales_feature'; did you mean 'sales_features'?",
            id="function",
        ),
        pytest.param(
            "table: datasets/sales", "table: datasets/sale", "did you mean 'datasets/sales'?", id="table"
        ),
        pytest.param(
            "global_batch: 64", "global_batch: 63\n    lanes: 2", "63 / 2 = 31.5; use 62", id="arithmetic"
        ),
        pytest.param(
            "contract:",
            "retain: {days: 9, partitions: 9}\n  contract:",
            "either days or partitions",
            id="retain",
        ),
        pytest.param("contract:", "retain: {weeks: 9}\n  contract:", "retain.weeks", id="retain key"),
        pytest.param(
            "contract:",
            "backfill: {partitions_per_run: 0}\n  contract:",
            "backfill.partitions_per_run",
            id="empty runs of a backfill",
        ),
        pytest.param("workers: 2", "workers: 9", "workers 9 are more than lanes 8", id="lanes"),
        pytest.param(
            "function: ml_assets.defs.store_demand.model.build",
            "script: ml_assets.defs.store_demand.modell",
            "ml_assets.defs.store_demand has no module 'modell'; did you mean 'model'?",
            id="script",
        ),
        pytest.param(
            "function: ml_assets.defs.store_demand.model.build",
            "script: ml_assets.defs.store_demand.model",
            "training.epochs is for the platform's training loop, and ml_assets.defs.store_demand.model has its own: "
            "set it in model.hyperparameters",
            id="loop of a script",
        ),
        pytest.param(
            "function: ml_assets.defs.store_demand.model.build",
            "description: nothing to train",
            "unknown key 'description'",
            id="neither",
        ),
        pytest.param(
            "    label: units",
            "    blob: {column: picture}\n    label: units",
            "this key is required",
            id="decode",
        ),
        pytest.param(
            "    label: units",
            "    blob: {column: picture, decode: ml_assets.defs.store_demand.model.biuld}\n    label: units",
            "ml_assets.defs.store_demand.model has no function 'biuld'; did you mean 'build'?",
            id="function that decodes",
        ),
        pytest.param(
            "    label: units",
            "    blob: {column: price, decode: ml_assets.defs.store_demand.model.build}\n    label: units",
            "features.blob.column: 'price' is also listed in numeric or categorical, but a blob is bytes",
            id="blob and number",
        ),
        pytest.param("metric: rmse", "metric: auc", "auc", id="metric of another objective"),
        pytest.param(
            "  partitions: {cadence: weekly, start: 2023-01-02, end: 2024-06-30}\n",
            "    watch: {enabled: true}\n",
            "source.watch needs partitions",
            id="watched whole",
        ),
        pytest.param(
            "online: {entity: [store,",
            "online: {entity: [stores,",
            "attributes.online.entity.0: entity 'stores' is not a column of the contract: did you mean 'store'?",
            id="entity",
        ),
        pytest.param(
            "online: {entity: [store,",
            "online: {entity: [price,",
            "entity 'price' is a float32: an entity is named by texts",
            id="entity by a float",
        ),
        pytest.param(
            "online: {entity: [store, product]}",
            "online: {entity: [store], ttl_hours: 0}",
            "attributes.online.ttl_hours: Input should be greater than or equal to",
            id="time to live",
        ),
        pytest.param("lookback: 4", "lookback: -1", "greater than or equal to 0", id="negative"),
        pytest.param(
            "workers: 2",
            "workers: two",
            "attributes.training.workers: Input should be a valid int",
            id="type",
        ),
        pytest.param(
            "learning_rate: 0.01",
            "learning_rate: 0",
            "training.learning_rate: Input should be greater than 0",
            id="zero",
        ),
        pytest.param(
            "name: store_demand",
            "name: store demand",
            "may only contain A to Z, a to z, 0 to 9 and _",
            id="name",
        ),
        pytest.param(
            "label: units",
            "label: unitz",
            "names 'unitz' in features.label, which is not a column of features/sales_features: did you mean 'units'?",
            id="column",
        ),
        pytest.param(
            "    label: units",
            "    blob: {column: partition_date, decode: ml_assets.defs.store_demand.model.build}\n    label: units",
            "names 'partition_date' in features.blob.column, which takes binary, and its dtype is date",
            id="blob that is no bytes",
        ),
        pytest.param(
            "  training:\n",
            "  scoring: {retrain: {when: [{metric: table_drift, at_most: 0}]}}\n  training:\n",
            "counts in scoring.retrain.when.0.metric the columns of features/sales_features that drift, and "
            "features/sales_features declares no `drift`: add `drift: {}` to it",
            id="drift that nothing measures",
        ),
        pytest.param(
            "slices: [product]", "slices: [prodct]", "names 'prodct' in evaluation.slices", id="slice"
        ),
    ],
)
def test_a_wrong_value_is_said_with_what_would_be_right(right: str, wrong: str, said: str) -> None:
    with pytest.raises(DeclarationRefused) as refused:
        load(DECLARED.replace(right, wrong, 1))
    assert said in str(refused.value).splitlines()[0]


CANARY = DECLARED.replace(
    "  evaluation:\n    objective: regression",
    "  release:\n    canary: {share: 0.1, by: [store], watch: [{metric: error_rate, no_worse_by: 0.01}]}\n"
    "  evaluation:\n    objective: regression",
)


def test_a_canary_with_a_share_and_a_watched_metric_is_legal() -> None:
    load(CANARY)


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        pytest.param("share: 0.1, ", "", "without `share` it answers none", id="nothing served"),
        pytest.param("share: 0.1", "share: 0.6", "less than or equal to 0.5", id="more than half"),
        pytest.param("by: [store], ", "", "by: is missing: name the columns of the entity", id="no entity"),
        pytest.param("by: [store]", "by: [stor]", "names 'stor' in release.canary.by", id="column"),
        pytest.param("by: [store]", "by: [units]", "'units' is not known when a request", id="label"),
        pytest.param("share: 0.1, by: [store], ", "", "bake_hours: is missing", id="neither time nor share"),
        pytest.param("no_worse_by", "no_worse_than", "did you mean 'no_worse_by'?", id="typo"),
        pytest.param("by: 0.01", "by: 0", "the smallest difference that matters", id="no difference"),
        pytest.param("by: 0.01", "by: 1.5", "error_rate cannot differ by more than 1", id="too large"),
        pytest.param("error_rate", "error_rates", "'error_rate', 'latency_ms'", id="unknown metric"),
        pytest.param("error_rate", "brier", "brier is not defined for objective regression", id="objective"),
        pytest.param("error_rate", "mae", "mae needs `largest`", id="unbounded loss"),
        pytest.param("by: 0.01", "by: 0.01, quantile: 0.9", "is for metric latency_ms", id="quantile"),
        pytest.param("by: 0.01", "by: 0.01, largest: 2", "is for metrics logloss and mae", id="largest"),
        pytest.param(
            "by: 0.01}", "by: 0.01}, {metric: error_rate, no_worse_by: 0.1}", "watched twice", id="twice"
        ),
    ],
)
def test_a_canary_that_cannot_be_compared_is_refused(right: str, wrong: str, said: str) -> None:
    with pytest.raises(DeclarationRefused) as refused:
        load(CANARY.replace(right, wrong, 1))
    assert said in str(refused.value)


GATED = DECLARED.replace(
    "  evaluation:\n    objective: regression",
    "  release:\n    canary: {bake_hours: 1}\n    gates:\n"
    "      canary: [{name: small error, metric: mae, at_most: 5}]\n"
    "      production: [{name: each product, metric: rmse, at_most: 9, slice: {product: '*'}}]\n"
    "  evaluation:\n    objective: regression",
)


def test_each_transition_may_have_gates() -> None:
    load(GATED)


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        pytest.param("metric: mae", "metric: auc", "no metric 'auc' for objective", id="metric"),
        pytest.param("{product: '*'}", "{stor: '*'}", "'stor' is not among the slices (product)", id="cut"),
        pytest.param(
            "{product: '*'}", "{product: 7}", "write '7' in quotes if that is the text", id="slice value"
        ),
        pytest.param("name: small error", "name: beats the baseline", "is the name of another", id="name"),
        pytest.param(
            "name: small error", "name: each product", "is the name of another", id="two transitions"
        ),
        pytest.param("    canary: {bake_hours: 1}\n", "", "there is no `canary` section", id="no canary"),
        pytest.param("      production:", "      archived:", "unknown key 'archived'", id="transition"),
    ],
)
def test_gates_of_a_transition_that_cannot_decide_are_refused(right: str, wrong: str, said: str) -> None:
    with pytest.raises(DeclarationRefused) as refused:
        load(GATED.replace(right, wrong, 1))
    assert said in str(refused.value)


RANKED = DECLARED.replace("objective: regression", "objective: ranking\n    group: store").replace(
    "metric: rmse", "metric: ndcg"
)


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        pytest.param("    group: store\n", "", "objective 'ranking 10' orders lists", id="no lists"),
        pytest.param(
            "group: store",
            "group: shop",
            "names 'shop' in evaluation.group, which is not a column of features/sales_features",
            id="lists by a column that is not there",
        ),
        pytest.param(
            "workers: 2",
            "workers: 2\n    parallel: {pipeline: 2}\n    gradient_accumulation_steps: 2",
            "training.parallel.pipeline: objective ranking 10 needs the rows of a list in one pass",
            id="lists that a pipeline divides",
        ),
        pytest.param(
            "    label: units\n",
            "    label: units\n    weight: units\n",
            "features.weight: objective ranking 10 takes no weights of rows: remove weight, or choose another",
            id="weights of rows in lists",
        ),
    ],
)
def test_a_ranking_names_its_lists_and_keeps_them_whole(right: str, wrong: str, said: str) -> None:
    load(RANKED)
    with pytest.raises(DeclarationRefused) as refused:
        load(RANKED.replace(right, wrong, 1))
    assert said in str(refused.value).splitlines()[0]


TEXTS = (Path(ml_assets.defs.__path__[0]) / "tiny_text" / "defs.yaml").read_text()
BLOB = "blob: {column: text, decode: ml_assets.defs.tiny_text.model.decode, vocabulary: 256}"


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        pytest.param(f"    {BLOB}\n", "", "features.blob: objective next_token predicts the tokens", id="no text"),
        pytest.param(", vocabulary: 256", "", "features.blob: objective next_token predicts", id="no vocabulary"),
        pytest.param("vocabulary: 256", "vocabulary: 1", "vocabulary: Input should be greater", id="one token"),
        pytest.param(
            "function: ml_assets.defs.tiny_text.model.build\n    hyperparameters: {width: 64, heads: 4, layers: 2}",
            "script: ml_assets.defs.tiny_text.model",
            "model.script: objective next_token needs the platform's loop",
            id="script",
        ),
        pytest.param(
            "objective: next_token",
            "objective: count",
            "features.blob.vocabulary: is for objective next_token, and the objective is count: remove it",
            id="tokens of another objective",
        ),
    ],
)  # fmt: skip
def test_a_pipeline_of_texts_names_text_and_tokens(right: str, wrong: str, said: str) -> None:
    changed = TEXTS.replace(right, wrong, 1)
    assert changed != TEXTS
    if "count" in wrong:
        changed = changed.replace("metric: perplexity", "metric: mae").replace(
            "metric: bits_per_token", "metric: mae"
        )
    with pytest.raises(DeclarationRefused) as refused:
        load(changed)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("", ":.*empty: declare a component, or remove the file", id="empty file"),
        pytest.param("# nothing yet\n", ":.*empty: declare a component", id="only a comment"),
        pytest.param("type: Dataset\n", ":1 type: no component 'Dataset': did you mean '.*Dataset'", id="short"),
        pytest.param("typ: x\n", ":1 typ: unknown key: did you mean 'type'", id="key of a document"),
        pytest.param("- a\n", ":1: found .*, not a component: write `type` and `attributes`", id="a list"),
        pytest.param("type: [\n", ":2: not valid YAML: ", id="not YAML"),
        pytest.param("type: {{ env.X }}\n", ":1: not valid YAML: .*in quotes", id="template without quotes"),
        pytest.param("type: !!int x\n", ":1: not valid YAML: .*'x'", id="wrong tag"),
        pytest.param("type: a\x07\n", ": not valid YAML: .*character", id="control character"),
        pytest.param(
            "type: ml_assets.components.Dataset\n", ":1 attributes.name: this key is required", id="no attributes"
        ),
        pytest.param(
            DECLARED.replace("start: 2023-01-02", "start: 2025-01-06", 1),
            "start 2025-01-06 is after end 2024-06-30: swap them",
            id="start after end",
        ),
    ],
)  # fmt: skip
def test_a_file_that_declares_nothing_sensible_is_one_line_with_a_remedy(text: str, said: str) -> None:
    with pytest.raises(DeclarationRefused) as refused:
        load(text)
    assert re.search(said, str(refused.value).splitlines()[0]), refused.value


def test_all_faults_of_a_folder_come_at_once_in_the_order_of_its_lines() -> None:
    wrong = DECLARED
    for right, typo in (("cadence:", "cadense:"), ("lookback: 4", "look_back: 4"), ("epochs:", "epoch:")):
        wrong = wrong.replace(right, typo, 1)
    with pytest.raises(DeclarationRefused) as refused:
        load(wrong.replace("components.TrainingPipeline", "components.TrainingPipelin"))
    faults = [line.partition("demand/defs.yaml:")[2] for line in str(refused.value).splitlines()]
    assert [fault.partition(" ")[2].partition(":")[0] for fault in faults] == [
        "attributes.partitions.cadense",
        "attributes.inputs.0.look_back",
        "type",
    ]
    assert [int(fault.partition(" ")[0]) for fault in faults] == sorted(
        number
        for number, line in enumerate(wrong.splitlines(), start=1)
        if "cadense" in line or "look_back: 4" in line or "TrainingPipeline" in line
    )


def test_a_number_in_yaml_may_have_an_exponent() -> None:
    load(DECLARED.replace("learning_rate: 0.01", "learning_rate: 1e-2"))


def test_the_volume_rule_may_be_off() -> None:
    load(DECLARED.replace("  contract:", "  volume: off\n  contract:", 1))


def test_a_name_that_is_used_twice_is_refused() -> None:
    dataset = DECLARED.partition("---")[0]
    with pytest.raises(DeclarationRefused, match="'datasets/sales' is declared 2 times"):
        load(f"{DECLARED}---\n{dataset}")


def test_features_cut_in_other_partitions_than_their_input_are_refused() -> None:
    first, features, *rest = DECLARED.split("---")
    with pytest.raises(DeclarationRefused, match="reads datasets/sales, which "):
        load("---".join([first, features.replace("cadence: weekly", "cadence: daily"), *rest]))


def test_the_declarations_of_this_projectload() -> None:
    load(DECLARED)
