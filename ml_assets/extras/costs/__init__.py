"""Costs of trainings: their reservations with prices, in sums and one by one. Nothing in the core needs this room."""
