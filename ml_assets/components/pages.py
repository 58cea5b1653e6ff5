"""Content of asset and run pages: tables, links, drift, short sentences, as Dagster metadata."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import dagster as dg

from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.profile import completeness
from ml_assets.data.validation.table_drift import ColumnDrift, TableDrift, TableShifts
from ml_assets.foundation.reports.page import Bullets
from ml_assets.foundation.reports.text import table_in_markdown
from ml_assets.model.steps.search_space import Choice
from resources.lake import VersionedStore
from resources.ledger import RuleOutcome
from resources.tracking.mlflow_client import page_of
from resources.words import counted

MAX_ROWS = 100
"""Largest number of rows of a table on a page, because an event stores them."""
ON_A_PAGE = 12
"""Names that a sentence on a page lists. It counts the others."""


def table_of(rows: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue | dg.TextMetadataValue:
    """Return rows with equal columns as a table; the text `none` without rows."""
    if not rows:
        return dg.MetadataValue.text("none")
    records = [
        dg.TableRecord(
            {
                name: value if isinstance(value, int | float | bool) else str(value)
                for name, value in row.items()
            }
        )
        for row in rows[:MAX_ROWS]
    ]
    return dg.MetadataValue.table(records)


def bullets(sentences: Iterable[str]) -> dg.MarkdownMetadataValue:
    """Return a list of sentences, whatever names from data are in them."""
    return dg.MetadataValue.md("\n".join(Bullets(tuple(sentences)).to_markdown()))


def column_schema(contract: Contract) -> dg.TableSchema:
    """Return a contract as the table schema that Dagster shows on the asset page."""
    columns: list[dg.TableColumn] = []
    for name, column in contract.by_name.items():
        rules = [
            f">= {column.ge}" if column.ge is not None else None,
            f"<= {column.le}" if column.le is not None else None,
            f"one of {len(column.isin)} values" if column.isin is not None else None,
            f"matches {column.pattern}" if column.pattern is not None else None,
            f"length >= {column.min_length}" if column.min_length is not None else None,
            f"length <= {column.max_length}" if column.max_length is not None else None,
            f"nulls <= {column.max_null_share:.2%}" if column.max_null_share is not None else None,
        ]
        columns.append(
            dg.TableColumn(
                name,
                column.dtype,
                description=column.description or None,
                constraints=dg.TableColumnConstraints(
                    nullable=column.nullable, unique=column.unique, other=[rule for rule in rules if rule]
                ),
            )
        )
    return dg.TableSchema(
        columns,
        constraints=dg.TableConstraints(
            other=[
                *([f"primary key: {', '.join(contract.primary_key)}"] if contract.primary_key else []),
                *(f"{one.name}: {one.expression}" for one in contract.conditions),
                *(f"{', '.join(one.columns)} in {one.table}" for one in contract.foreign_keys),
            ]
        ),
    )


def report_facts(page: str, file: str) -> dict[str, dg.MetadataValue]:
    """Return the link to a report, and the address of its file for readers without the pages."""
    return {"report": dg.MetadataValue.url(page), "report_file": dg.MetadataValue.text(file)}


def rules_table(rules: Sequence[RuleOutcome]) -> dg.TableMetadataValue | dg.TextMetadataValue:
    """Return a table of gates with requirement, measurement and the condition that would pass."""
    return table_of(
        [
            {
                "rule": one.rule,
                "slice": one.slice,
                "result": one.result,
                "asks": one.asks,
                "found": one.found,
                "would pass": one.would_pass,
            }
            for one in rules
        ]
    )


def commit_facts(lake: VersionedStore, commit_id: str) -> dict[str, Any]:
    """Return a commit of the lake as metadata, with a link to its page if the lake has pages."""
    page = lake.commit_url(commit_id)
    return {"lake/commit": commit_id} | ({"lake/page": dg.MetadataValue.url(page)} if page else {})


def study_facts(choice: Choice) -> dict[str, Any]:
    """Return the result of a study as metadata, with the values that it chose."""
    return {"study": choice.source, "hyperparameters": dg.MetadataValue.json(dict(choice.parameters))}


def tracked_facts(tracking_uri: str, run_id: str, place: str | None = None) -> dict[str, Any]:
    """Return a run of MLflow as metadata, with a link to its page (or to `place`) if MLflow is a server."""
    page = page_of(tracking_uri, place or f"runs/{run_id}")
    return {"mlflow/run": run_id} | ({"mlflow/page": dg.MetadataValue.url(page)} if page else {})


def severity_of(name: Literal["error", "warn"]) -> dg.AssetCheckSeverity:
    """Return Dagster's severity for the key `severity` of a rule."""
    return dg.AssetCheckSeverity.ERROR if name == "error" else dg.AssetCheckSeverity.WARN


def readable(value: float) -> float:
    """Round a figure to six significant digits for people."""
    return float(f"{value:.6g}")


def profile_table(profiled: Mapping[str, Any]) -> dg.TableMetadataValue | dg.TextMetadataValue:
    """Return a table with completeness and range of each column of a partition, from its stored profile."""
    complete = completeness(profiled)
    return table_of(
        [
            {
                "column": name,
                "complete": f"{complete[name]:.1%}",
                "min": _short(column.get("min")),
                "max": _short(column.get("max")),
                "mean": _short(column.get("mean")),
                "most frequent": "(hidden)"
                if column.get("hidden")
                else ", ".join(f"{value} ({rows})" for value, rows in column.get("values", [])[:3]),
            }
            for name, column in profiled["columns"].items()
        ]
    )


class RunPage:
    """Reporter of a training to the page of its run and, by observations, to the page of `asset`.

    `facts` are in each observation; `prefix` begins each line of the log.
    """

    def __init__(
        self,
        context: dg.OpExecutionContext | dg.AssetExecutionContext,
        asset: dg.AssetKey,
        *,
        partition: str | None = None,
        prefix: str = "",
        **facts: int,
    ) -> None:
        self._context, self._asset = context, asset
        self._partition, self._prefix, self._facts = partition, prefix, facts

    def info(self, text: str) -> None:
        self._context.log.info(f"{self._prefix}{text}")

    def warning(self, text: str) -> None:
        self._context.log.warning(f"{self._prefix}{text}")

    def observe(self, step: int, numbers: Mapping[str, float]) -> None:
        facts = {**self._facts, "step": step, **numbers}
        self._context.log_event(dg.AssetObservation(self._asset, partition=self._partition, metadata=facts))


def _short(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.5g}"


_BARS = "▁▂▃▄▅▆▇█"
_SHOWN = 40
"""Columns on a page, those nearest to their limits first."""
_SHOWN_MEANS = 12
"""The same of means."""


def drift_in_markdown(key: str, drift: TableDrift, noun: str = "partition") -> str:
    """Return the comparison of partition `key` as Markdown. `noun` names what the past consists of.

    A full bar is a distance at the column's limit or above it. The last bar is partition `key` against the window, the
    others are the partitions of the window, each against the others.
    """
    shown = drift.columns[:_SHOWN]
    lines = [
        f"{key} against {counted(len(drift.past), noun)}, {drift.past[0]} to {drift.past[-1]}. Distances are "
        "PSI beyond chance. A full bar is at the limit or above it; the last bar is this partition.",
        "",
        *table_in_markdown(
            ("column", "past, now", "distance", "limit", ""),
            [
                (
                    one.column,
                    _line(one),
                    f"{one.distance:.3g}",
                    f"{one.limit:.3g}",
                    "drifts" if one.drifts else "",
                )
                for one in shown
            ],
        ),
    ]
    if len(drift.columns) > _SHOWN:
        lines += [
            "",
            f"{counted(len(drift.columns) - _SHOWN, 'column')} farther below their limits are not shown.",
        ]
    return "\n".join([*lines, *([] if drift.shifts is None else _means(drift.shifts))])


def _means(shifts: TableShifts) -> list[str]:
    """Return the lines of a table of means and their predictions."""
    return [
        "",
        f"Means against their predictions from the other columns, by {counted(len(shifts.past), 'partition')}, "
        f"{shifts.past[0]} to {shifts.past[-1]}. Distances are in standard deviations of the column.",
        "",
        *table_in_markdown(
            ("column", "mean", "predicted", "distance", "limit", ""),
            [
                (
                    one.column,
                    f"{one.mean:.4g}",
                    f"{one.expected:.4g}",
                    f"{one.residual:+.2f}",
                    f"{one.limit:.2f}",
                    "drifts" if one.drifts else "",
                )
                for one in shifts.columns[:_SHOWN_MEANS]
            ],
        ),
    ]


def _line(one: ColumnDrift) -> str:
    top = len(_BARS) - 1
    return "".join(_BARS[min(top, int(top * value / one.limit))] for value in (*one.past, one.distance))
