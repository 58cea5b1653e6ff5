"""Refusal of models that no bundle can hold: a graph of ONNX is one message of protobuf, of 2 GiB at most.

For models that the platform trains (load), before their training, and for those that scripts hand in (script.model).
"""

from resources.job.errors import BadConfiguration

PROTOBUF_BYTES = 2**31 - 1
"""Largest message of protobuf."""


def refuse_beyond_bundle(who: str, arithmetic: str, size: int) -> None:
    """Raise `BadConfiguration` if `size` bytes are too many for a bundle.

    `who` begins the sentence, `arithmetic` says what the bytes are made of.
    """
    if size > PROTOBUF_BYTES:
        raise BadConfiguration(
            f"{who} has {arithmetic} = {size / 2**30:.1f} GiB, and a bundle holds 2 GiB, which is protobuf's limit: "
            "make the model smaller"
        )
