"""Asset checks: of published tables, of leakage in feature tables, of skew of models; with the sensors of a check."""
