"""Limit of the graph in a bundle: it is a single protobuf message, of 2 GiB at most.

Weights of a torch module are in another file (release.onnx_graph) and have no limit. Inside the graph are graphs
and blends that scripts hand in, and buffers with `persistent=False`. Refuses those before a training, or when they are
handed in.
"""

from typing import TYPE_CHECKING

from resources.job.errors import BadConfiguration

if TYPE_CHECKING:
    from torch import nn

PROTOBUF_BYTES = 2**31 - 1
"""Largest size of a protobuf message, in bytes."""


def refuse_beyond_graph(who: str, arithmetic: str, size: int, remedy: str) -> None:
    """Raise `BadConfiguration` if `size` bytes do not fit into the graph of a bundle.

    In the message, `who` begins the sentence and `arithmetic` shows how the size was computed.
    """
    if size > PROTOBUF_BYTES:
        raise BadConfiguration(
            f"{who} has {arithmetic} = {size / 2**30:.1f} GiB, and the graph of a bundle holds 2 GiB, which is "
            f"protobuf's limit: {remedy}"
        )


def refuse_large_constants(who: str, module: "nn.Module") -> None:
    """Raise `BadConfiguration` if buffers of `module` that its `state_dict` leaves out do not fit into the graph."""
    from torch.nn.parameter import is_lazy

    stored = module.state_dict().keys()
    left_out = [one for name, one in module.named_buffers() if name not in stored and not is_lazy(one)]
    refuse_beyond_graph(
        who,
        f"{len(left_out)} buffers with persistent=False of {sum(one.numel() for one in left_out):,} numbers",
        sum(one.nbytes for one in left_out),
        "register them with persistent=True, which stores them with the weights",
    )
