"""Evaluation of a challenger on a holdout: metrics, slices, bootstrap intervals, gates, report.

Everything here works in memory on labels and predictions of one holdout. Nothing here reads the lake, loads a model,
talks to the tracker or uses stored metrics: the champion predicts the same rows again.

    spec.py              the YAML section, with its gates
    metrics.py           metrics on rows               bootstrap.py         redraws, intervals, metrics over blocks
    list_metrics.py      metrics of ordered lists      row_weights.py       weighted means and quantiles
    declared_metrics.py  metrics of own code, bias     slices.py            rows of each slice, its calibration
    baseline.py          the naive model to beat       reference.py         a regression on the same columns
    texts.py             count models of texts         holdout_rows.py      labels, lists, blocks, legal predictions
    holdout.py           holdout in, Evaluation out    model_difference.py  two models on the same rows
    gates.py             gate results and decision     sentences.py         sentences about them
    curves.py            numbers behind pictures       explanations.py      what the model does with a column
    thresholds.py        thresholds with their costs   worst_slices.py      slices found to be worse
    evaluation_document.py, report_document.py         the content of evaluation.json
    report.py            HTML and JSON                 card.py              model card
    chapters.py          chapters of both              pictures.py          plots
"""
