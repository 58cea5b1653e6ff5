"""Reference page of `ml_assets.open()`: methods of a context with their signatures, in the order of the code."""

import inspect
import re
from collections.abc import Iterator
from functools import cached_property

import ml_assets
from ml_assets.context import Context
from ml_assets.context.data import Data
from ml_assets.context.environments import Environments
from ml_assets.context.runs import Runs

_INTRO = """\
A context is the platform in one home, for notebooks and programs. `ml-assets` and the page of
reviews call the same methods. It only reads, unless it was opened with `writes=True`. Each decision
names the `Person` who decides: `context.person` is the person of the environment. Made from the code.

```python
import ml_assets

context = ml_assets.open()
context.plan("flight_delay", "2013-12-31").validation.ok
context.show("flight_delay").card().to_markdown()
```"""
_PARTS = (
    ("Context", "context", Context),
    ("Data", "context.data", Data),
    ("Runs", "context.runs", Runs),
    ("Environments", "context.env", Environments),
)


def context_page() -> str:
    """Return the Markdown of the page."""
    parts = ["# Context", _INTRO, "## Open", *_entry("ml_assets.open", ml_assets.open)]
    for title, path, of_type in _PARTS:
        parts.append(f"## {title}")
        for name, member in vars(of_type).items():
            is_documented = inspect.isfunction(member) or isinstance(member, property | cached_property)
            if is_documented and not name.startswith("_"):
                parts += _entry(f"{path}.{name}", member)
    return "\n\n".join(parts) + "\n"


def _entry(path: str, member: object) -> Iterator[str]:
    """Yield the paragraphs about a method or a property: its heading, its signature, its docstring."""
    yield f"### {path}"
    if inspect.isfunction(member):
        signature = inspect.signature(member)
        own = [one for name, one in signature.parameters.items() if name != "self"]
        yield f"```text\n{path}{_plain(signature.replace(parameters=own))}\n```"
    yield inspect.getdoc(member) or ""


def _plain(signature: inspect.Signature) -> str:
    """Return a signature with types by their own names, and without defaults that are functions."""
    parameters = [
        one.replace(default=inspect.Parameter.empty)
        if callable(one.default) and one.default is not inspect.Parameter.empty
        else one
        for one in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=parameters)).replace("'", "")
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text)
