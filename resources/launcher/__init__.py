"""Starting distributed training: what a job is, and the launchers that run it."""
