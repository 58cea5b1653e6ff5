"""`flight_delay` by gradient-boosted trees, on the same rows and columns, so that one report compares both."""
