"""The report: needs nothing else, says everything, and cannot be written to by its data."""

import base64
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ml_assets.model import evaluation
from ml_assets.model.evaluation.comparison.curves import roc
from ml_assets.model.evaluation.comparison.gates import Champion
from ml_assets.model.evaluation.comparison.holdout import evaluate
from ml_assets.model.evaluation.comparison.sentences import plain_findings, weighted
from ml_assets.model.evaluation.metrics.bootstrap import Interval
from ml_assets.model.evaluation.report.pictures import headline, pictures
from ml_assets.model.evaluation.report.report import headline_markdown, render, summary_markdown, write_report
from ml_assets.model.evaluation.report_document import ComparedModel, LossCurve, Report
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets_tests.evaluation.holdout_case import HoldoutCase, model_facts
from resources.job.events import Recovery

SPEC = EvaluationSpec.model_validate(
    {
        "objective": "binary",
        "slices": ["origin", "carrier"],
        "min_slice_rows": 100,
        "draws": 200,
        "gates": [
            {"name": "ranks <b>well</b>", "metric": "auc", "at_least": 0.99},
            {"name": "every carrier", "metric": "auc", "better_than": "champion", "slice": {"carrier": "*"}},
        ],
    }
)
LOSS = LossCurve(
    training=((20, 0.7), (40, 0.6), (60, 0.5)), validation=((30, 0.65), (60, 0.55)), best_step=60
)


RECOVERIES = (
    Recovery(
        attempt=2,
        cause="rank 1 was killed by SIGKILL <b>at night</b>",
        seconds=4.44,
        from_step=1200,
        steps_lost=7,
        workers=(4, 2),
        rows_repeated=0,
    ),
    Recovery(
        attempt=3,
        cause="it saved",
        seconds=6.0,
        from_step=1300,
        steps_lost=0,
        workers=(2, 2),
        rows_repeated=0,
    ),
)


def make_report(
    case: HoldoutCase, champion: Champion | None, recoveries: tuple[Recovery, ...] = ()
) -> Report:
    predictions = case.predictions(champion=champion is not None)
    return Report(
        title="flight_delay & <i>friends</i>",
        partition="2013-12-31",
        lineage={
            "lake commit": "9f2c" * 16,
            "MLflow run": "http://127.0.0.1:5000/#/runs/1",
            "odd": "javascript:x",
        },
        loss=LOSS,
        recoveries=recoveries,
        rows_lost=0 if recoveries else None,
        model=model_facts(),
        evaluation=evaluate(case.holdout, predictions, SPEC, champion=champion),
    )


@pytest.fixture(scope="module")
def report(case: HoldoutCase) -> Report:
    return make_report(case, Champion("version 7"), RECOVERIES)


@pytest.fixture(scope="module")
def html(report: Report) -> str:
    return render(report)


def test_loads_nothing_from_elsewhere(html: str) -> None:
    sources = re.findall(r"""(?:src|url)\s*[=(]\s*["']?([^"')\s>]+)""", html)
    assert sources
    assert all(one.startswith("data:") for one in sources)
    assert not re.search(r"<(script|link|iframe)|@import", html)
    assert re.findall(r'href="([^"]+)"', html) == ["http://127.0.0.1:5000/#/runs/1"]


def test_text_from_outside_stays_text(html: str) -> None:
    assert "flight_delay &amp; &lt;i&gt;friends&lt;/i&gt;" in html
    assert "ranks &lt;b&gt;well&lt;/b&gt;" in html
    assert "<b>well</b>" not in html


def test_decision_rules_slices_and_lineage_are_on_it(html: str, report: Report) -> None:
    decision = report.evaluation.decision
    assert decision.status == "rejected"
    for said in (decision.summary, "would pass:", "by origin", "JFK", "champion (version 7)", "9f2c" * 16):
        assert said in html
    assert "Fewer than 100 rows, not measured: HA" in html
    assert html.count("data:image/svg+xml;base64,") == 4


def test_what_interrupted_the_training_and_its_cost_are_on_it(html: str, report: Report) -> None:
    cost = "interrupted 2 times, 10.4 s until it trained again, 7 steps repeated, 0 rows trained twice, 0 left out"
    assert cost in html
    assert f"* The training was {cost}." in summary_markdown(report, {})
    (row,) = re.findall(r"<tr>\s*<td class=\"n\">2</td>(.*?)</tr>", html, re.DOTALL)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row)
    assert cells == [
        "rank 1 was killed by SIGKILL &lt;b&gt;at night&lt;/b&gt;",
        "4 → 2",
        "4.4 s",
        "1,200",
        "7",
        "0",
    ]


def test_rows_that_resuming_repeated_or_lost_stand_out(report: Report) -> None:
    wrong = report.model_copy(
        update={"recoveries": (replace(RECOVERIES[0], rows_repeated=26),), "rows_lost": 3}
    )
    html = render(wrong)
    assert '<span class="pill failed">26</span>' in html
    assert '<span class="pill failed">3</span> rows were left out' in html


def test_of_many_interruptions_the_longest_are_shown_in_their_order(report: Report) -> None:
    many = [replace(RECOVERIES[1], attempt=n, seconds=float(n % 10)) for n in range(2, 32)]
    html = render(report.model_copy(update={"recoveries": tuple(many)}))
    shown = [int(n) for n in re.findall(r"<td class=\"n\">(\d+)</td>\s*<td>it saved", html)]
    assert shown == [7, 8, 9, 17, 18, 19, 28, 29]
    assert "and 22 shorter, in evaluation.json" in html


def test_a_training_that_ran_through_has_no_such_table(case: HoldoutCase) -> None:
    assert "Interruptions" not in render(make_report(case, champion=None))


def test_written_and_read_back_it_is_the_same_to_the_byte(html: str, report: Report, tmp_path: Path) -> None:
    files = write_report(report, tmp_path / "deep" / "folder")
    assert Report.model_validate_json(files.json.read_text()) == report
    assert files.html.read_text() == html


def test_first_model_is_compared_with_the_baseline(case: HoldoutCase) -> None:
    html = render(make_report(case, champion=None))
    assert "improvement on baseline" in html
    assert "improvement on champion" not in html
    assert "first model" in html


def test_flattered_champion_is_not_called_worse(case: HoldoutCase) -> None:
    seen = make_report(case, Champion("version 7", ("2013-11-01",))).evaluation
    assert all("champion" not in sentence for sentence in plain_findings(seen))


def test_a_compared_model_that_saw_the_rows_or_cannot_score_is_marked(report: Report) -> None:
    """An undefined metric of such a model is a dash; text from outside stays text."""
    level = {name: Interval(0.0, -0.1, 0.1) for name in ("auc", "logloss", "brier")}
    seen = ComparedModel(
        name="trees, version 3",
        bundle="ab" * 32,
        seen=("2013-11-01", "2013-11-02"),
        metrics={"auc": 0.7123, "logloss": 0.5, "brier": 0.2},
        improvements={**level, "ece": Interval(None)},
    )
    lost = ComparedModel(name="<b>lost</b>", bundle="", cannot_score="its label is delay")
    html = render(report.model_copy(update={"compared": (seen, lost)}))
    assert "trees, version 3 was trained or selected on 2 of these partitions" in html
    assert "not measured: its label is delay" in html
    assert "&lt;b&gt;lost" in html
    (row,) = re.findall(r"<td>trees, version 3</td>(.*?)</tr>", html, re.DOTALL)
    assert re.sub(r"<[^>]*>|\s+", " ", row).split() == [
        *("0.7123", "+0.0000", "±", "0.1000", "0.5000", "+0.0000", "±", "0.1000"),
        *("0.2000", "+0.0000", "±", "0.1000", "–", "–"),
    ]


def test_models_trained_with_other_weights_are_named(report: Report) -> None:
    assert weighted(report) == ""
    evaluation = report.evaluation.model_copy(update={"weight": "margin", "champion_weight": "units"})
    others = (
        ComparedModel(name="trees, version 3", bundle="ab" * 32),
        ComparedModel(name="like the challenger", bundle="cd" * 32, weight="margin"),
        ComparedModel(name="lost", bundle="", cannot_score="its label is delay"),
    )
    said = weighted(report.model_copy(update={"evaluation": evaluation, "compared": others}))
    assert "by the column margin, in the challenger's training as well" in said
    assert said.endswith(
        "The training of the champion (version 7) weighted rows by the column units. "
        "The training of trees, version 3 did not weight rows."
    )
    unweighted = evaluation.model_copy(update={"weight": ""})
    summary = summary_markdown(report.model_copy(update={"evaluation": unweighted}), images={})
    assert "* The training of the champion (version 7) weighted rows by the column units." in summary


def test_pictures_are_small_pngs(report: Report) -> None:
    drawn = pictures(report.evaluation, report.loss)
    assert list(drawn) == ["calibration", "ranking", "scores", "loss"]
    for data in drawn.values():
        assert base64.b64decode(data).startswith(b"\x89PNG")
        assert len(data) < 50_000


def test_asset_page_gets_decision_metrics_and_pictures(report: Report) -> None:
    page = summary_markdown(report)
    assert page.startswith(f"**{report.evaluation.decision.summary}**")
    assert re.search(r"\| AUC +\| 0\.", page)
    assert page.count("](data:image/png;base64,") == 5


def test_headline_has_decision_metrics_of_all_models_and_one_picture(report: Report) -> None:
    decision, *rest = headline_markdown(report).splitlines()
    assert decision == f"**{report.evaluation.decision.summary}**"
    (header,) = [line for line in rest if line.startswith("| metric")]
    assert [cell.strip() for cell in header.split("|")[2:-1]] == list(report.evaluation.overall.metrics)
    (picture,) = headline(report.evaluation).items()
    assert rest[-1] == f"![{picture[0]}](data:image/png;base64,{picture[1]})"
    assert base64.b64decode(picture[1]).startswith(b"\x89PNG")
    assert len(picture[1]) < 30_000


def test_headline_of_a_model_without_a_value_has_no_picture(report: Report) -> None:
    overall = report.evaluation.overall
    unknown = {role: dict.fromkeys(metrics, Interval(None)) for role, metrics in overall.metrics.items()}
    evaluation = report.evaluation.model_copy(
        update={"overall": overall.model_copy(update={"metrics": unknown})}
    )
    assert headline(evaluation) == {}


def test_roc_is_thin_and_its_area_is_the_auc(case: HoldoutCase) -> None:
    import numpy as np
    import sklearn.metrics as sk

    y = case.holdout.get_column("label").to_numpy()
    points = roc(y, case.challenger, np.ones(len(y)))
    assert len(points) <= 200
    assert (points[0], points[-1]) == ((0, 0), (1, 1))
    x, height = (np.array(axis) for axis in zip(*points, strict=True))
    assert np.trapezoid(height, x) == pytest.approx(sk.roc_auc_score(y, case.challenger), abs=0.002)


def test_heavy_libraries_wait_until_they_are_needed() -> None:
    home = Path(evaluation.__file__).parent
    paths = [path.relative_to(home).with_suffix("") for path in home.rglob("[a-z]*.py")]
    modules = [
        ".".join(path.parts) for path in paths if path.stem != "reference"
    ]  # scipy fits it, in the process of an evaluation
    assert {"comparison.gates", "report.report"} <= set(modules)
    imports = "; ".join(f"import ml_assets.model.evaluation.{name}" for name in modules)
    heavy = ["matplotlib", "jinja2", "sklearn", "scipy", "torch", "mlflow", "pandas", "dagster"]
    check = f"{imports}; import sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
