"""Comparison of a challenger with other models, on a holdout, its slices and its groups, and the decision of the gates.

holdout.py           holdout in, Evaluation out    holdout_rows.py      labels, lists, slices, legal predictions
baseline.py          the naive model to beat       reference.py         a regression on the same columns
texts.py             count models of texts         model_difference.py  two models on the same rows
declared_metrics.py  metrics of own code, bias     worst_slices.py      slices found to be worse
gates.py             gate results and decision     sentences.py         sentences about them
curves.py            pictures, thresholds, costs   explanations.py      what the model does with a column
"""
