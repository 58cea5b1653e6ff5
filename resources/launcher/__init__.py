"""Launchers of distributed training: on this machine and on Kubernetes, and the resources of the workers."""
