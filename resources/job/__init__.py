"""Training job: input and output of a worker, its settings, events, errors and recoveries. Standard library only."""
