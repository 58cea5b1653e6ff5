"""Real servers on this machine's loopback, for tests and experiments: built, started, ended, and nothing left.

Here: building pinned Go modules (`build`), supervising processes (`processes`), the servers and the cluster that
consist of both. Standard library only, because it runs before anything else is installed. Not here: requests to the
servers (`ml_assets_tests/`).
"""
