"""Chapter about latency and size of a bundle: of the report, the asset page and the model card."""

from collections.abc import Iterator

from ml_assets.foundation.reports.numbers import count, number
from ml_assets.foundation.reports.written_page import Chapter, Grid, Paragraph
from ml_assets.model.evaluation.serving_cost import ServingCost
from resources.words import counted


def serving_chapters(cost: ServingCost | None) -> Iterator[Chapter]:
    """Yield the chapter, if the cost was measured."""
    if cost is None:
        return
    rows = tuple(
        (called, count(one.rows), count(one.calls), f"{number(one.p50_ms)} ms", f"{number(one.p99_ms)} ms")
        for called, one in (("one row", cost.row), ("a batch", cost.batch))
    )
    threads = counted(cost.threads, "thread")
    yield Chapter(
        "Serving",
        (
            Grid(("call", "rows", "calls", "p50", "p99"), rows, numbers=frozenset({1, 2, 3, 4})),
            Paragraph(f"The bundle has {number(cost.bundle_bytes / 1e6)} MB."),
        ),
        f"by the bundle's own runtime on {threads} of {cost.machine}, in the process of this evaluation",
    )
