"""Machine of a training: starts the ranks, watches them, and returns their exit code to the launcher."""
