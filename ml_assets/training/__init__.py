"""What runs in the worker processes: loop, checkpoints, metrics. Never imports the platform."""
