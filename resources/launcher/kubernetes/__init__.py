"""Training on a Kubernetes cluster: an Indexed Job an attempt, a Lease a training.

Nothing here is imported before a setting asks for it. Not here: what the pods do (a command of the settings).
"""
