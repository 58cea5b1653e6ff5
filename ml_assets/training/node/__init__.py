"""Machine of a training: starts the ranks, watches them, and gives their exit code to the launcher."""
