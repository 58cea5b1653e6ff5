"""Partitioned tables in the lake: where they lie, their manifests, write–audit–publish, the guard."""
