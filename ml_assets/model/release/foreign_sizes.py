"""Sizes in the graph of a model that was trained elsewhere: they may depend on the number of rows, not on values.

The check of a graph runs it on a few rows. A tensor whose size a value decides is small on them, and may need all
memory on a row of the holdout, or of a request. Not here: the other checks (`foreign_graph`).
"""

from collections.abc import Iterator
from typing import Any

_GROWS_BY = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "DFT": (1,),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Tile": (1, 2),
    "Upsample": (1,),
}
"""Operator → places of the inputs that decide how large its output is, without a bound by its other inputs."""
_SELECTS = frozenset(("Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"))
"""Operators that return as many entries as values say, at most those of their input."""
_CUTS = frozenset(("Reshape", "Slice", "Split", "SplitToSequence", "TopK"))
"""Operators whose inputs after the first one cut the first one."""


def sizes_by_value(model: Any) -> Iterator[str]:
    """Yield what is wrong with the sizes in a valid graph, with the remedy."""
    graph = model.graph
    constants = {one.name for one in graph.initializer}
    of_values = {one.name for one in graph.input if one.name not in constants}
    sized_by_values: set[str] = set()
    for node in graph.node:
        by_value = [name in of_values for name in node.input]
        by_size = any(name in sized_by_values for name in node.input)
        if any(by_value[place] for place in _GROWS_BY.get(node.op_type, ()) if place < len(by_value)):
            yield (
                f"computes a size from values ({node.op_type}): a row could need all memory. Export the model with "
                "sizes that depend on the number of rows alone"
            )
        if node.op_type == "StringConcat":
            yield "joins texts (StringConcat), so their length has no bound: export the model without"
        if by_size if node.op_type in ("Shape", "Size") else any(by_value):
            of_values.update(node.output)
        is_cut = node.op_type in _CUTS and any(by_value[1:])
        if by_size or is_cut or (node.op_type in _SELECTS and any(by_value)):
            sized_by_values.update(node.output)
