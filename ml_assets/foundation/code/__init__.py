"""Versions of code, read from its source text.

Here: syntax trees, imports, and the version of functions, scripts and modules. Not here: comparing a version with
another (tables.guard, steps.identity, training.same_code). Imports neither the code that it reads nor any stage.
"""
