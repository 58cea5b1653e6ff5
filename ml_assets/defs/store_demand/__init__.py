"""Weekly units sold per store and product: a small pipeline on synthetic data.

It shows the platform with another cadence (weeks), another objective (regression) and no network.
"""
