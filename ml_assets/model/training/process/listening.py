"""Look at whether a process listens at an address, before torch connects to its store.

torch connects to an address where nobody listens for as long as its timeout: it tries again and again in one call,
ignores signals meanwhile, and logs a lot. Not here: stores (node.nodes, script.meeting).
"""

import socket

_CONNECT_SECONDS = 2.0
"""Longest wait for a machine that does not answer at all; a machine without such a process refuses at once."""


def is_listening(host: str, port: int) -> bool:
    """Return True if a process listens there. False if the name does not resolve (yet), nobody listens, or the machine
    does not answer in 2 s."""
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False
