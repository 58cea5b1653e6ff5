"""Point-in-time joins, rolling windows, the leakage test, fitted encodings."""
