"""Next byte of English technical text: a small decoder on the documentation that the package botocore ships.

It shows the objective `next_token`, rows of text without columns, and layers divided over workers. Nothing of the text
is in this repository: the source reads it from the installed package (Apache-2.0), whose version is locked.
"""
