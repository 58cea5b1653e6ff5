"""MLflow: runs and the queue of their metrics; storage of studies."""
