"""From a frozen training set to a released version: the five steps, training, evaluation, release."""
