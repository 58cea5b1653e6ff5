"""Every objective from YAML to a registered version: trained by two workers, measured, and answering through MLflow."""

import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ml_assets.components import TrainingPipeline
from ml_assets.components.base import SpecComponent
from ml_assets.components.specs import ScoringSection
from ml_assets.foundation.code.code_version import code_version
from ml_assets.model.evaluation.metrics.list_metrics import gain
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.release.bundle_store import FILES
from ml_assets.model.release.promotion import promote, register
from ml_assets.model.release.releases import bundles_of, releases_of
from ml_assets.model.release.rollback import demote
from ml_assets.model.steps.evaluate import evaluate_model
from ml_assets_tests.components.installation import Installation, failure_of, readings_components
from ml_assets_tests.components.model_run import CHECKPOINT, EVALUATION, REGISTERED, ModelRun, train
from ml_assets_tests.components.noise_champion import randomize_weights
from ml_assets_tests.components.objectives_pipeline import HERE as LABELS
from ml_assets_tests.components.objectives_pipeline import labelled
from ml_assets_tests.components.readings_pipeline import (
    FEATURE_TABLE,
    FEATURES,
    HERE,
    MODEL,
    PIPELINE,
    READINGS,
    WINDOW,
    Source,
    days,
)
from ml_assets_tests.release.recorded_evaluations import record_evaluation
from resources.ledger import Person

LAST = days(WINDOW, start=1)[-1]

MULTICLASS = labelled(
    "levels",
    "string",
    "multiclass",
    evaluation={
        "explanations": {"rows": 150},
        "gates": [
            {"name": "better than the shares", "metric": "logloss", "better_than": "baseline"},
            {"name": "ranks each class", "metric": "macro_auc", "at_least": 0.9},
            {"name": "every machine", "metric": "accuracy", "better_than": "baseline", "slice": {"machine": "*"},
             "on_undecided": "pass"},
        ]
    },
)  # fmt: skip

COUNT = labelled(
    "whole",
    "int64",
    "count",
    model={"function": f"{HERE}.build", "hyperparameters": {"start": 2.5}},
    evaluation={
        "metrics": [{"function": f"{LABELS}.missing", "better": "lower", "group": "machine"}],
        "gates": [
            {
                "name": "few lack",
                "metric": "missing",
                "better_than": "baseline",
                "slice": {"machine": "press"},
            },
            {
                "name": "beats the mean",
                "metric": "poisson_deviance",
                "better_than": "baseline",
                "margin": "30%",
            },
            {"name": "close", "metric": "mae", "at_most": 2.5},
            {"name": "answers in time", "metric": "row_p99_ms", "at_most": 10_000},
            {"name": "small", "metric": "bundle_mb", "at_most": 2},
        ],
    },
)

BINARY = labelled(
    "busy",
    "float32",
    "binary",
    sensitive="load",
    evaluation={
        "bias": [{"column": "machine", "threshold": 0.5, "min_rows": 25}],
        "costs": {"false_positive": 3, "false_negative": 1, "unit": "hours"},
        "gates": [
            {"name": "ranks", "metric": "auc", "better_than": "baseline"},
            {"name": "machines alike", "metric": "demographic_parity_machine", "at_most": 0.05},
            {"name": "as fair as before", "metric": "equal_opportunity_machine", "better_than": "champion",
             "on_undecided": "pass"},
        ],
    },
)  # fmt: skip

RANKING = labelled(
    "grades",
    "int64",
    "ranking 2",
    model={"function": f"{HERE}.build", "hyperparameters": {"start": 0.0}},
    evaluation={
        "group": "at",
        "explanations": {"rows": 100},
        "gates": [
            {
                "name": "better by half a percent",
                "metric": "ndcg",
                "better_than": "baseline",
                "margin": "0.5%",
            },
            {"name": "the best first", "metric": "mrr", "at_least": 0.9},
        ],
    },
)


def text_components(function: str = "sentences", vocabulary: int = 128) -> list[SpecComponent]:
    """Return the readings' components with a text in each row, whose letters are predicted."""
    columns = [
        {"name": "made", "dtype": "int64"} if column["name"] == "made" else column
        for column in FEATURE_TABLE["contract"]["columns"]
    ]
    return readings_components(
        features={
            "function": f"{LABELS}.{function}",
            "contract": FEATURE_TABLE["contract"]
            | {"columns": [*columns, {"name": "text", "dtype": "binary"}]},
        },
        pipeline={
            "features": PIPELINE["features"]
            | {"blob": {"column": "text", "decode": f"{LABELS}.read_letters", "vocabulary": vocabulary}},
            "model": {"function": f"{LABELS}.next_letter"},
            "evaluation": {
                **{key: value for key, value in PIPELINE["evaluation"].items() if key != "baseline"},
                "objective": "next_token",
                "gates": [
                    {
                        "name": "knows letters",
                        "metric": "perplexity",
                        "better_than": "baseline",
                        "margin": "30%",
                    },
                    {"name": "of few", "metric": "perplexity", "at_most": 4},
                ],
            },
        },
    )


QUANTILE = readings_components(
    pipeline={
        "evaluation": PIPELINE["evaluation"]
        | {
            "objective": "quantile 0.90",
            "gates": [
                {"name": "beats the group's quantile", "metric": "pinball", "better_than": "baseline"},
                {"name": "covers", "metric": "coverage_error", "at_most": 0.1},
            ],
        },
    }
)


def with_tables(installation: Installation) -> Installation:
    """Readings and features for the whole window."""
    assert installation.run(READINGS, partition=days(1)[0], last=LAST).success
    result = installation.run(FEATURES, partition=days(2)[1], last=LAST)
    assert result.success, failure_of(result)
    return installation


def report_of(run: ModelRun) -> Report:
    return Report.model_validate_json(run.report)


@pytest.fixture(scope="module")
def classes(shared_installation: Installation) -> ModelRun:
    """Run of a pipeline whose label is one of three words."""
    return train(with_tables(shared_installation.declared_as(MULTICLASS)), LAST)


def test_a_model_of_classes_is_blessed_and_registered(classes: ModelRun) -> None:
    facts = classes.facts[EVALUATION]
    assert facts["decision"] == "blessed", facts["why"]
    assert classes.facts[REGISTERED]["version"] == 1
    assert facts["logloss"] < facts["baseline_logloss"]
    evaluation = report_of(classes).evaluation
    assert set(evaluation.values()) == {"logloss", "accuracy", "macro_auc", "macro_f1"}
    assert evaluation.names["baseline"].startswith(
        "naive baseline (share of each class by machine, prior of "
    )
    assert evaluation.names["reference"].startswith("logistic regression of each class against the rest")
    assert all(one.low is not None for one in evaluation.overall.improvements["baseline"].values())


@pytest.mark.nightly
def test_a_script_trains_the_classes_and_replaces_the_network(classes: ModelRun) -> None:
    """LightGBM, handed in as it is, answers a probability for each class; its report compares it with the network."""
    by_script = labelled(
        "levels",
        "string",
        "multiclass",
        model={"script": "ml_assets_tests.scripts.boosted", "hyperparameters": {"rounds": 40}},
        training={"workers": 1},
        evaluation={
            "compared_with": [f"{MODEL}/1"],
            "gates": [{"name": "useful", "metric": "logloss", "better_than": "baseline"}],
        },
    )
    run = train(classes.installation.declared_as(by_script), LAST)
    assert run.facts[EVALUATION]["decision"] == "blessed", run.facts[EVALUATION]["why"]
    assert [one.name for one in report_of(run).evaluation.classes] == ["high", "low", "medium"]
    (network,) = report_of(run).compared
    assert network.metrics["logloss"] == pytest.approx(classes.facts[EVALUATION]["logloss"])
    probabilities = run.served.predict(run.rows)
    assert probabilities.shape == (run.rows.height, 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)


def test_the_report_shows_what_was_taken_for_what(classes: ModelRun) -> None:
    evaluation = report_of(classes).evaluation
    rows = classes.installation.main.scan(FEATURES, days(6, start=13)).collect()
    assert [one.name for one in evaluation.classes] == ["high", "low", "medium"]
    by_class = dict(rows["made"].value_counts().iter_rows())
    assert {one.name: one.rows for one in evaluation.classes} == by_class
    predicted = np.asarray(classes.served.predict(rows)).argmax(axis=1)
    names = [one.name for one in evaluation.classes]
    for i, label in enumerate(names):
        of_label = predicted[(rows["made"] == label).to_numpy()]
        shares = np.bincount(of_label, minlength=3) / len(of_label)
        assert list(evaluation.curves.confusion[i]) == pytest.approx(shares, rel=1e-5)
    page = Path(classes.facts[EVALUATION]["report_file"].removeprefix("file://")).read_text()
    assert '<img alt="confusion"' in page
    assert "3 classes." in page


def test_the_report_explains_the_model_of_classes(classes: ModelRun) -> None:
    found = report_of(classes).explanations
    assert found is not None
    assert found.rows == 150
    # Output is the level of the machine and the load; yesterday's tells less.
    assert [one.column for one in found.columns] == ["load", "machine", "made_yesterday"]
    assert (found.columns[0].added.low or 0) > 0
    load = next(one for one in found.dependence if one.column == "load")
    assert list(load.means) == ["high", "low", "medium"]
    assert load.means["high"][0] < load.means["high"][-1]
    asset = classes.facts[EVALUATION]["summary"]
    assert "## Columns the model uses" in asset
    assert "![dependence on load](data:image/png" in asset
    page = Path(classes.facts[EVALUATION]["report_file"].removeprefix("file://"))
    for file in (page, page.with_name("model_card.html")):
        assert '<img alt="dependence on load"' in file.read_text()


def test_mlflow_answers_with_a_column_for_each_class(classes: ModelRun) -> None:
    import mlflow.pyfunc

    folder = bundles_of(classes.installation.platform).open(classes.facts[EVALUATION]["bundle"]).folder
    rows = classes.rows
    answer = mlflow.pyfunc.load_model(str(folder)).predict(rows.to_pandas())
    assert list(answer.columns) == ["high", "low", "medium"]
    assert answer.to_numpy() == pytest.approx(classes.served.predict(rows), abs=1e-6)
    assert answer.sum(axis=1).to_numpy() == pytest.approx(np.ones(len(rows)), abs=1e-5)
    assert (answer.idxmax(axis=1).to_numpy() == rows["made"].to_numpy()).mean() > 0.8
    one = classes.served.predict_row(rows.row(0, named=True))
    assert one == pytest.approx(answer.iloc[0].to_dict(), abs=1e-6)


def scored_day(run: ModelRun, components: Sequence[SpecComponent]) -> pl.DataFrame:
    """Return the table of predictions of the run's day, made while its version is in production."""
    *tables, pipeline = components
    spec = pipeline.spec.model_copy(update={"scoring": ScoringSection()})
    installation = run.installation.declared_as([*tables, TrainingPipeline(spec)])
    releases = releases_of(installation.platform)
    promote(
        releases, MODEL, run.facts[REGISTERED]["version"], by=Person.unchecked("ada"), reason="to score a day"
    )
    result = installation.run(f"{MODEL}/predictions", partition=run.day)
    assert result.success, failure_of(result)
    demote(releases, MODEL, by=Person.unchecked("ada"), reason="scored")
    return installation.main.scan(f"{MODEL}/predictions", [run.day]).collect()


def test_a_day_scored_by_classes_has_a_row_for_each(classes: ModelRun) -> None:
    scored = scored_day(classes, MULTICLASS)
    wide = scored.pivot("output", index=["at", "machine"], values="prediction")
    assert wide.columns == ["at", "machine", "high", "low", "medium"]
    rows = classes.rows.select("at", "machine").join(wide, on=["at", "machine"], maintain_order="left")
    expected = classes.served.predict(classes.rows)
    np.testing.assert_allclose(rows.drop("at", "machine").to_numpy(), expected, atol=1e-6)


def test_a_champion_with_other_classes_is_an_outcome(classes: ModelRun) -> None:
    """The run is green and says which classes differ; `on_incomparable` decides."""
    installation, bundle = classes.installation, classes.facts[EVALUATION]["bundle"]
    releases = releases_of(installation.platform)
    stranger = randomize_weights(installation, bundle, LAST, classes=("big", "low", "medium"))
    window = releases.log.evaluations(MODEL)[0].trained_on
    gates = releases.log.evaluations(MODEL)[0].gates
    record_evaluation(installation.platform.ledger, stranger, partition=LAST, trained_on=window, gates=gates)
    version = register(releases, stranger, run_id=classes.facts[CHECKPOINT]["mlflow/run"], links={})
    promote(releases, MODEL, version.number, by=Person.unchecked("eve"), reason="has other classes")
    found = train(installation, LAST).facts[EVALUATION]
    assert found["why"] == "Undecided: the champion cannot score these rows."
    assert (
        "its classes are big, low, medium; those of this comparison are high, low, medium" in found["summary"]
    )


def test_a_model_of_counts_from_yaml_to_mlflow(installation: Installation) -> None:
    """Blessed and registered. Its weights cannot begin a training of classes."""
    import mlflow.pyfunc

    counts = train(with_tables(installation.declared_as(COUNT)), LAST)
    facts = counts.facts[EVALUATION]
    assert facts["decision"] == "blessed", facts["why"]
    assert counts.facts[REGISTERED]["version"] == 1
    evaluation = report_of(counts).evaluation
    assert set(evaluation.values()) == {"poisson_deviance", "mae", "rmse", "missing"}
    assert evaluation.own_metrics[0].code_version == code_version(f"{LABELS}.missing")
    assert facts["missing"] < facts["baseline_missing"]
    assert evaluation.names["reference"].startswith("Poisson regression on the same columns (penalty ")
    deviance = {
        role: found["poisson_deviance"].value or 0 for role, found in evaluation.overall.metrics.items()
    }
    assert deviance["reference"] < deviance["baseline"]
    assert deviance["challenger"] < 1.1 * deviance["reference"]
    folder = bundles_of(counts.installation.platform).open(facts["bundle"]).folder
    answer = mlflow.pyfunc.load_model(str(folder)).predict(counts.rows.to_pandas())
    assert np.abs(answer - counts.rows["made"].to_numpy()).mean() < 2.5
    page = Path(facts["report_file"].removeprefix("file://")).read_text()
    assert "reference (Poisson regression)" in page
    assert "mean count" in page

    # Latency and size of the bundle. A retried step repeats its evaluation, although the clock goes on.
    cost = evaluation.serving
    assert cost is not None
    assert cost.bundle_bytes == sum((folder / name).stat().st_size for name in FILES)
    assert facts["bundle_mb"] == pytest.approx(cost.bundle_bytes / 1e6)
    assert facts["row_p99_ms"] == pytest.approx(cost.row.p99_ms, rel=0.01)
    limits = [rule for rule in evaluation.decision.rules if rule.metric in cost.values()]
    assert [(rule.rule, rule.status) for rule in limits] == [
        ("answers in time", "passed"),
        ("small", "passed"),
    ]
    assert "by the bundle&#39;s own runtime on 1 thread of " in page
    installation = counts.installation
    *_, pipeline = COUNT
    training_set = counts.result.output_for_node(f"{MODEL}.snapshot", "snapshot")
    trained = counts.result.output_for_node(f"{MODEL}.train")
    repeated, report = evaluate_model(pipeline.spec, installation.platform, training_set, trained, "retry")
    assert (report.evaluation.serving, repeated.evaluation[:12]) == (cost, facts["evaluation"])
    (recorded,) = installation.platform.ledger.models.evaluations(MODEL)
    assert recorded.run_id == counts.result.run_id

    tuned = labelled(
        "whole",
        "int64",
        "multiclass",
        model={"function": f"{HERE}.build", "init_from": f"{MODEL}/1"},
        evaluation={"gates": [{"name": "usable", "metric": "accuracy", "at_least": 0.1}]},
    )
    result = installation.declared_as(tuned).train(LAST)
    said = f"{MODEL}/1 has objective count, this pipeline multiclass: the last layer of its network has another number"
    assert said in failure_of(result)
    assert [event.step_key for event in result.get_step_failure_events()] == [f"{MODEL}.snapshot"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, _empty_tracker: Path) -> ModelRun:
    """Run of a pipeline whose rows are short texts."""
    home = tmp_path_factory.mktemp("texts")
    shutil.copy(_empty_tracker, home / "mlflow.db")
    return train(with_tables(Installation(home).declared_as(text_components())), LAST)


def test_a_model_of_texts_from_yaml_to_mlflow(texts: ModelRun) -> None:
    import mlflow.pyfunc

    facts = texts.facts[EVALUATION]
    assert facts["decision"] == "blessed", facts["why"]
    assert texts.facts[REGISTERED]["version"] == 1
    evaluation = report_of(texts).evaluation
    assert set(evaluation.values()) == {"perplexity", "bits_per_token", "token_accuracy"}
    assert evaluation.names["baseline"].startswith("naive baseline (frequency of each token")
    assert evaluation.names["reference"] == "count model of 3 tokens in a row (Witten–Bell)"
    folder = bundles_of(texts.installation.platform).open(facts["bundle"]).folder
    rows = texts.installation.main.scan(FEATURES, days(6, start=13)).collect()
    answer = mlflow.pyfunc.load_model(str(folder)).predict(rows.to_pandas())
    assert list(answer.columns) == ["nats_per_token", "accuracy"]
    mean = np.average(answer["nats_per_token"], weights=rows["made"].to_numpy())
    assert facts["perplexity"] == pytest.approx(np.exp(mean), abs=1e-5)
    assert evaluation.texts is not None
    assert evaluation.texts.tokens == rows["made"].sum()
    page = Path(facts["report_file"].removeprefix("file://")).read_text()
    assert "reference (trigram counts)" in page
    assert '<img alt="positions"' in page
    assert '<img alt="frequencies"' in page
    card = Path(facts["report_file"].removeprefix("file://")).with_name("model_card.html").read_text()
    assert "the mean nats per predicted token" in card


def test_a_day_of_texts_is_scored(texts: ModelRun) -> None:
    scored = scored_day(texts, text_components())
    assert set(scored["output"]) == {"nats_per_token", "accuracy"}
    nats = scored.filter(output="nats_per_token").sort("at", "machine")["prediction"].to_numpy()
    expected = texts.served.predict(texts.rows.sort("at", "machine"))[:, 0]
    np.testing.assert_allclose(nats, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "vocabulary", "said"),
    [
        ("too_few", 128, "have another number of tokens than its label 'made' says: at=2024-01-02 06:00:00"),
        ("sentences", 119, "have a token id outside of 0 to 118: at="),
    ],
)
def test_tokens_that_do_not_fit_are_refused_before_a_launch(
    texts: ModelRun, function: str, vocabulary: int, said: str
) -> None:
    changed = texts.installation.declared_as(text_components(function, vocabulary))
    if function != "sentences":
        assert changed.run(FEATURES, partition=days(2)[1], last=LAST).success
    result = changed.train(LAST)
    assert [event.step_key for event in result.get_step_failure_events()] == [f"{MODEL}.snapshot"]
    assert said in failure_of(result)


def test_a_model_that_decides_unlike_for_its_groups_is_rejected(installation: Installation) -> None:
    """Machines differ in their output, so a right model decides unlike: the declared gate rejects it by name."""
    binary = train(with_tables(installation.declared_as(BINARY)), LAST)
    facts = binary.facts[EVALUATION]
    assert facts["decision"] == "rejected"
    assert "“machines alike”: demographic parity by machine is" in facts["summary"]
    evaluation = report_of(binary).evaluation
    rows = binary.installation.main.scan(FEATURES, days(6, start=13)).collect()
    rows = rows.with_columns(decided=binary.served.predict(rows) >= 0.5)
    by_machine = rows.group_by("machine").agg(pl.col("decided").mean()).sort("machine")["decided"].to_list()
    (bias,) = evaluation.bias
    assert [one.decided_positive.share.value for one in bias.groups] == pytest.approx(by_machine)
    parity = max(by_machine) - min(by_machine)
    assert facts["demographic_parity_machine"] == pytest.approx(parity, abs=1e-6)
    assert parity > 0.05
    assert "## Decisions by machine" in facts["summary"]
    page = Path(facts["report_file"].removeprefix("file://")).read_text()
    assert "Decisions by machine" in page

    # Thresholds: chosen on the validation rows, measured on the holdout.
    table = report_of(binary).thresholds
    assert table is not None
    threshold = table.chosen.threshold or 0.0
    assert threshold in binary.served.predict(
        binary.installation.main.scan(FEATURES, days(2, start=11)).collect()
    )
    decided, late = binary.served.predict(rows) >= threshold, rows["made"].to_numpy() > 0
    cost = 3 * (decided & ~late).sum() + (~decided & late).sum()
    assert table.chosen.cost.value == pytest.approx(1000 * cost / len(rows))
    assert table.chosen.recall == pytest.approx((decided & late).sum() / late.sum())
    for told in (facts["summary"], page):
        assert "a false positive costs 3 hours, a false negative 1 hours" in told
        assert "On 96 validation rows, the threshold " in told
    # The search for worst slices looks at features, but at none that is sensitive: it would show values of it.
    found = report_of(binary).worst_slices
    assert found is not None
    assert found.columns == ("machine", "made_yesterday")
    assert f"{found.candidates} slices of at least 20 rows" in page


@pytest.mark.nightly
def test_a_model_of_a_quantile_lies_above_its_share_of_the_labels(installation: Installation) -> None:
    quantile = train(with_tables(installation.declared_as(QUANTILE)), LAST)
    facts = quantile.facts[EVALUATION]
    assert facts["decision"] == "blessed", facts["why"]
    evaluation = report_of(quantile).evaluation
    assert evaluation.objective == "quantile 0.9"
    assert set(evaluation.values()) == {"pinball", "coverage_error"}
    assert evaluation.names["baseline"].startswith("naive baseline (0.9 quantile by machine, prior of ")
    assert evaluation.names["reference"].startswith("quantile regression on the same columns (penalty ")
    rows = quantile.installation.main.scan(FEATURES, days(6, start=13)).collect()
    covered = float((rows["made"].to_numpy() <= quantile.served.predict(rows)).mean())
    assert evaluation.values()["coverage_error"] == pytest.approx(abs(covered - 0.9))
    page = Path(facts["report_file"].removeprefix("file://")).read_text()
    assert '<img alt="coverage"' in page
    assert "90 % of the rows should lie below the dashed line." in page


def test_a_model_of_lists_orders_the_machines_of_an_hour(installation: Installation) -> None:
    """From YAML to MLflow; then a list that the split cuts is refused before the launch."""
    import mlflow.pyfunc

    ranking = train(with_tables(installation.declared_as(RANKING)), LAST)
    facts = ranking.facts[EVALUATION]
    assert facts["decision"] == "blessed", facts["why"]
    evaluation = report_of(ranking).evaluation
    assert evaluation.objective == "ranking 2"
    assert set(evaluation.values()) == {"ndcg", "mrr", "recall"}
    assert evaluation.names["baseline"].startswith("naive baseline (mean by machine, prior of ")
    assert evaluation.names["reference"].startswith("linear regression on the same columns (penalty ")
    rows = ranking.installation.main.scan(FEATURES, days(6, start=13)).collect()
    scores = ranking.served.predict(rows)
    lists = rows["at"].rank("dense").to_numpy().astype(np.intp)
    ndcg = gain(rows["made"].to_numpy().astype(np.float64), scores, lists, 2)
    assert evaluation.values()["ndcg"] == pytest.approx(np.nanmean(ndcg))
    assert evaluation.lists is not None
    assert evaluation.lists.lists == 6 * 12
    assert np.isnan(ndcg).sum() == evaluation.lists.none_relevant + evaluation.lists.equally_relevant
    page = Path(facts["report_file"].removeprefix("file://")).read_text()
    assert '<img alt="depth"' in page
    assert "NDCG@2" in page
    explanations = report_of(ranking).explanations
    assert explanations is not None
    assert (explanations.metric, explanations.rows) == ("ndcg", 100)  # 25 whole lists
    assert (explanations.columns[0].added.value or 0) > 0
    assert "lost NDCG@2" in page
    folder = bundles_of(ranking.installation.platform).open(facts["bundle"]).folder
    answer = mlflow.pyfunc.load_model(str(folder)).predict(ranking.rows.to_pandas())
    assert answer == pytest.approx(ranking.served.predict(ranking.rows), abs=1e-6)

    cut = labelled(
        "grades",
        "int64",
        "ranking",
        evaluation={
            "group": "machine",
            "gates": [{"name": "usable", "metric": "ndcg", "at_least": 0.1}],
        },
    )
    said = failure_of(installation.declared_as(cut).train(LAST))
    assert "4 of 4 lists are in several partitions: machine drill is in 2024-01-02, " in said


def test_a_list_that_the_start_of_the_window_cuts_is_refused(
    installation: Installation, source: Source
) -> None:
    """Its rows of the day before are no part of the window: only the table knows that the list is longer."""
    before, first = days(3)[1:]
    closed = pl.col("closed_at") + timedelta(days=1)
    source.spoiled[before] = lambda rows: rows.with_columns(closed.alias("closed_at"))
    by_closing = labelled(
        "grades",
        "int64",
        "ranking",
        evaluation={
            "group": "label_known_at",
            "gates": [{"name": "usable", "metric": "ndcg", "at_least": 0.1}],
        },
    )
    later = days(WINDOW, start=2)[-1]
    declared = installation.declared_as(by_closing)
    assert declared.run(READINGS, partition=days(1)[0], last=later).success
    assert declared.run(FEATURES, partition=before, last=later).success
    said = failure_of(declared.train(later))
    assert f"the start of the window, {first}, cuts 1 list in two: label_known_at 2024-01-04 00:00:00" in said
    assert f"has rows in {before}, too. A list belongs to one partition" in said


def test_a_class_that_only_the_holdout_has_is_refused_by_row(
    installation: Installation, source: Source
) -> None:
    source.spoiled[LAST] = lambda rows: rows.with_columns(
        pl.when(pl.col("machine") == "mill").then(90.0).otherwise("made").alias("made")
    )
    result = with_tables(installation.declared_as(MULTICLASS)).train(LAST)
    said = failure_of(result)
    assert (
        "label 'made' has a class that no training row has in 12 of 288 holdout rows: at=2024-01-19 06:00"
        in said
    )
    assert "machine=mill has absurd; " in said
    assert [event.step_key for event in result.all_events if event.is_step_start] == [
        f"{MODEL}.validate_inputs",
        f"{MODEL}.snapshot",
    ]
