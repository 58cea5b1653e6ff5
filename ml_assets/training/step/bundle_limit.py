"""Size limit of bundles: an ONNX graph is a single protobuf message, of 2 GiB at most.

Refuses models that the platform trains before their training (load), and models that scripts hand in
(script.script_model).
"""

from resources.job.errors import BadConfiguration

PROTOBUF_BYTES = 2**31 - 1
"""Largest size of a protobuf message, in bytes."""


def refuse_beyond_bundle(who: str, arithmetic: str, size: int) -> None:
    """Raise `BadConfiguration` if `size` bytes do not fit into a bundle.

    In the message, `who` begins the sentence and `arithmetic` shows how the size was computed.
    """
    if size > PROTOBUF_BYTES:
        raise BadConfiguration(
            f"{who} has {arithmetic} = {size / 2**30:.1f} GiB, and a bundle holds 2 GiB, which is protobuf's limit: "
            "make the model smaller"
        )
