"""Versions in use: the server, and what is measured of its answers."""
