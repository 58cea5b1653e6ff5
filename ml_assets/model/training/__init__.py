"""Code of the worker processes: loop, checkpoints, metrics. Never imports the platform."""
