"""YAML by libyaml: documents of a file with the position of each key, as Dagster reads them; values as text and back.

Dagster parses in Python, which takes a third of the time that a pipeline needs to load. libyaml is five times as fast.
Not here: the meaning of the documents (`components.documents`).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from dagster_shared.yaml_utils import YAML_TIMESTAMP_TAG, parse_yamls_with_source_position
from dagster_shared.yaml_utils.source_position import (
    LineCol,
    SourcePosition,
    SourcePositionTree,
    ValueAndSourcePositionTree,
)

# PyYAML without libyaml, as some systems build it, has no such classes.
_FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FASTEST_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Loader(_FASTEST):
    """Loader whose values carry their positions. Dates stay texts."""

    yaml_implicit_resolvers: Mapping[Any, Any] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != YAML_TIMESTAMP_TAG]
        for first, resolvers in _FASTEST.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self._file = file

    def documents(self) -> Iterator[ValueAndSourcePositionTree]:
        """Yield each document."""
        try:
            while self.check_data():
                yield self.get_data()
        finally:
            self.dispose()

    def construct_object(self, node: Any, deep: bool = False) -> ValueAndSourcePositionTree:
        try:
            value: Any = super().construct_object(node, deep=True)
        except (TypeError, ValueError) as error:  # a key that is a mapping; a tag that its text does not fit
            raise yaml.MarkedYAMLError(
                problem=f"{error}. Write a template in quotes: '{{{{ … }}}}'", problem_mark=node.start_mark
            ) from error
        position = SourcePosition(self._file, _place(node.start_mark), _place(node.end_mark))
        below: dict[str | int, SourcePositionTree] = {}
        if isinstance(value, dict):
            entries: Mapping[Any, ValueAndSourcePositionTree] = value
            below = {
                key.value: SourcePositionTree(
                    key.source_position_tree.position, one.source_position_tree.children
                )
                for key, one in entries.items()
            }
            value = {key.value: one.value for key, one in entries.items()}
        elif isinstance(value, list):
            items: Sequence[ValueAndSourcePositionTree] = value
            below = {place: one.source_position_tree for place, one in enumerate(items)}
            value = [one.value for one in items]
        return ValueAndSourcePositionTree(value, SourcePositionTree(position, below))


def _place(mark: Any) -> LineCol:
    return LineCol(mark.line + 1, mark.column + 1)


def documents_in(file: Path) -> Sequence[ValueAndSourcePositionTree]:
    """Return the documents of `file`. Raises `yaml.MarkedYAMLError`, with the message of Dagster's parser if it has
    one."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise yaml.MarkedYAMLError(problem=f"not UTF-8: {error}") from error
    try:
        return list(_Loader(text, str(file)).documents())
    except yaml.YAMLError as found:
        try:
            return parse_yamls_with_source_position(text, str(file))
        except yaml.MarkedYAMLError:
            raise
        except (TypeError, ValueError, yaml.YAMLError) as error:
            if isinstance(found, yaml.MarkedYAMLError):
                raise found from error
            raise yaml.MarkedYAMLError(problem=str(error)) from error


def to_yaml(value: Any) -> str:
    """Return `value`, of lists, dictionaries, texts, numbers, booleans and dates, as YAML."""
    return yaml.dump(value, Dumper=_FASTEST_DUMPER)


def from_yaml(text: str) -> Any:
    """Inverse of `to_yaml`."""
    return yaml.load(text, Loader=_FASTEST)
