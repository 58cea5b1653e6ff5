"""Evaluation of a challenger on a holdout: metrics, slices, bootstrap intervals, gates, report.

Everything here works in memory on labels and predictions of one holdout. Nothing here reads the lake, loads a model,
talks to the tracker or uses stored metrics: the champion predicts the same rows again.

    spec.py           the YAML section (EvaluationSpec)
    metrics.py        metrics on rows                  block_counts.py  the same metrics as functions of blocks
    own_metrics.py    metrics of the project's own code
    bias_spec.py      its YAML section                 bias.py          decisions compared between groups
    bootstrap.py      redraws and intervals            slices.py        rows of each slice
    baseline.py       the naive model to beat          curves.py        calibration, ROC, histograms, as numbers
    reference.py      a regression on the same columns
    ngrams.py         models of texts that count tokens
    text_figures.py   losses of single tokens
    slice_calibration.py  predicted minus observed on each slice
    worst_slices.py   slices found to be worse         coded_columns.py  columns cut into few parts
    measurable.py     the section without columns that older rows lack
    gates.py          gate results, gate decision      sentences.py     sentences of the decision
    holdout.py        holdout in, Evaluation out       evaluation_document.py  Evaluation as JSON
    report.py         HTML and JSON                    pictures.py      plots
"""
