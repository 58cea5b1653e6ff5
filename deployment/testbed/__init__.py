"""Real servers on this machine's loopback, for tests and for trying things: built, started, ended, nothing left.

What belongs here: building pinned Go modules (`build`), supervising processes (`processes`), the servers and the
cluster made of both. Standard library only, so that it runs before anything else is installed. What is asked of
the servers belongs to `ml_assets_tests/`.
"""
