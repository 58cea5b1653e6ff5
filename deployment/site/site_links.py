"""Links between pages, which are written for a reader of the repository, as they are on the site."""

import posixpath
import re
from functools import partial

OUTSIDE = {"README.md": "project.md", "CONTRIBUTING.md": "contributing.md"}
"""Page of the repository outside of `docs/` → its place on the site."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_IMAGE = re.compile(r'(<img src=")docs/')


def on_site(text: str, source: str, place: str) -> str:
    """Return the page `source` of the repository as it is at `place`. A link to a file of code becomes its text."""
    return _LINK.sub(partial(_link, source, place), _IMAGE.sub(r"\1", text))


def _link(source: str, place: str, link: re.Match[str]) -> str:
    mark, text, target = link.groups()
    if "://" in target or target.startswith("#"):
        return link[0]
    path, sign, heading = target.partition("#")
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if file in OUTSIDE:
        there = OUTSIDE[file]
    elif file.startswith("docs/") and file.endswith((".md", ".png")):
        there = file.removeprefix("docs/")
    else:
        return text
    return f"{mark}[{text}]({posixpath.relpath(there, posixpath.dirname(place) or '.')}{sign}{heading})"
