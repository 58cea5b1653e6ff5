"""Versions in use: evidence from their requests and predictions, and what follows from it.

Here: e-processes. Not here: serving and its log (`serving`), decisions in the ledger (`release`), gates (`evaluation`).
"""
