"""Pipeline parcels: synthetic parcels at three counters. Homes of releases are written with it, and opened with it."""
