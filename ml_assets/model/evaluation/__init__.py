"""Evaluation of a challenger on a holdout: metrics, slices, bootstrap intervals, gates, report.

Everything here works in memory on labels and predictions of one holdout. Nothing here reads the lake, loads a model,
talks to the tracker or uses stored metrics: the champion predicts the same rows again. Each line imports only lines
below it:

    report/                 pages, model card, pictures
    comparison/             models on the same rows, gates, decision
    report_document.py      the content of evaluation.json
    evaluation_document.py  the evaluation in it
    spec.py                 the YAML section, with its gates
    metrics/                metrics on rows and over blocks, intervals
"""
