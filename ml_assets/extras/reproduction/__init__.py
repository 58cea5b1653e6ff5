"""Training a version again, and comparing it bit by bit."""
