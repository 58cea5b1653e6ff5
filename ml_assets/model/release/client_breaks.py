"""Serving signature of a bundle: what clients send and what they get back. Compares two versions for clients.

A client of one version breaks if the other needs a column that it does not send, reads a column as another kind, or
answers another question. Other types of the same kind and categories that training never saw are no difference, because
every version accepts them.
"""

from collections.abc import Iterator

from ml_assets.model.release.facts import BundleFacts


def breaks_for_clients(before: BundleFacts, after: BundleFacts) -> list[str]:
    """Return what breaks for clients of `before` if `after` answers them, a clause each; empty if nothing does."""
    return list(_breaks(before, after))


def _breaks(before: BundleFacts, after: BundleFacts) -> Iterator[str]:
    sent = {column.name: column for column in before.inputs}
    for column in after.inputs:
        known = sent.get(column.name)
        if known is None:
            yield f"it needs the column {column.name!r} ({column.kind}, {column.dtype}), which clients do not send"
        elif known.kind != column.kind:
            yield (
                f"it reads the column {column.name!r} as {column.kind} ({column.dtype}), and clients send "
                f"{known.kind} ({known.dtype})"
            )
    asked, answered = before.question, after.question
    if asked.label != answered.label:
        yield f"it predicts {answered.label!r}, and clients expect {asked.label!r}"
    if asked.objective != answered.objective:
        yield f"its objective is {answered.objective!r}, and clients expect {asked.objective!r}"
    if before.columns != after.columns:
        yield f"its answer has {_named(after)}, and clients expect {_named(before)}"
    if asked.tokens != answered.tokens:
        yield "it reads texts as other tokens, so its figures mean something else"


def _named(facts: BundleFacts) -> str:
    return ", ".join(facts.columns) or "one number"
