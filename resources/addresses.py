"""Addresses as people may see them. Here: taking passwords out. Not here: what an address leads to."""

import re


def without_password(text: str) -> str:
    """The text with whatever stands before the `@` of its addresses left out."""
    return re.sub(r"//[^/@\s]*@", "//", text)
