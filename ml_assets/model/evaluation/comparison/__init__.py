"""Comparison of a challenger with other models, on a holdout, its slices and its groups, and the decision of the gates.

holdout.py           holdout in, Evaluation out    holdout_rows.py      labels, lists, blocks, legal predictions
baseline.py          the naive model to beat       reference.py         a regression on the same columns
texts.py             count models of texts         model_difference.py  two models on the same rows
slices.py            rows and calibration of each  worst_slices.py      slices found to be worse
declared_metrics.py  metrics of own code, bias     thresholds.py        thresholds with their costs
gates.py             gate results and decision     sentences.py         sentences about them
curves.py            numbers behind pictures       explanations.py      what the model does with a column
"""
