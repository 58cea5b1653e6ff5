"""Training on a Kubernetes cluster: one Indexed Job per attempt, one Lease per training.

Imported only if `ML_ASSETS_LAUNCHER` is kubernetes. Not here: the program of the pods (a command of the settings).
"""
