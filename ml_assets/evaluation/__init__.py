"""Judging a challenger on a holdout: metrics, slices, bootstrap intervals, gates, report.

Everything here works on labels and predictions of one holdout, in memory. Nothing here reads the lake, loads
a model, talks to the tracker, or knows a metric that was measured elsewhere: the champion takes part through
its predictions on these very rows, never through numbers it once got.

    spec.py        what a pipeline declares (EvaluationSpec)
    metrics.py     what a metric is, on rows           blocks.py      the same metrics as functions of blocks
    bootstrap.py   redraws and intervals               slices.py      which rows belong to which slice
    baseline.py    the naive model to beat             curves.py      calibration, ROC, histograms, as numbers
    reference.py   a regression on the same columns
    gates.py       rules, gate decision               words.py       sentences of the decision
    evaluate.py    holdout in, Evaluation out          result.py      Evaluation, the document
    report.py      HTML and JSON                       pictures.py    plots
"""
