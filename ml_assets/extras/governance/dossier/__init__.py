"""Dossier of a registered version: signed documents beside the bundle that others can verify without this platform.

Here: the documents' forms, their signature, and the verification, which needs a folder and a public key. Not here:
the facts that go into a dossier (`ml_assets.extras.governance.dossier.stored` gathers them), the rule that a
promotion needs one (`ml_assets.model.release`).
"""
