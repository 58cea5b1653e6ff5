"""Serving of models over HTTP, and the record of what was served.

Here: the assignment of entities to champion or canary, the log of requests. Not here: the prediction itself
(`release.runtime`) and the decision about a canary.
"""
