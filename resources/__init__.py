"""Systems outside the process, behind small protocols: lake, launcher, tracker, ledger, artifacts.

Belongs here: clients, stores, their settings. Does not: code that knows datasets, features or models. Nothing in this
package imports `ml_assets`.
"""
