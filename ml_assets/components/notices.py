"""Notices that are sent once, although ticks and runs repeat."""

import dagster as dg


def claim(instance: dg.DagsterInstance, notice: str) -> bool:
    """Return True once for each notice. Stored before the notice is sent: a process that dies sends nothing twice."""
    key = f"ml-assets/{notice}"
    storage = instance.run_storage
    if storage.get_cursor_values({key}):
        return False
    storage.set_cursor_values({key: "told"})
    return True
