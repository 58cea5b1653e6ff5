"""Command `ml-assets costs`: hours and money of trainings, in sums or of one training. Changes nothing."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import click

from ml_assets.cli.opened import reading
from ml_assets.cli.terminal import Problem, json_option, say
from resources.words import counted

if TYPE_CHECKING:
    from ml_assets.extras.costs.costs import By, CostRow, Costs, Spending, TrainingCost
    from ml_assets.pages.digest import ScheduledShare

_WAYS = ("pipeline", "partition", "day", "status", "gpu", "group")
_MONTH_DAYS = 365.25 / 12


@click.command("costs")
@click.option(
    "--by",
    type=click.Choice(_WAYS),
    default="pipeline",
    show_default=True,
    help="Group of a row. `status`: how attempts ended; `group`: `group_name` of the pipeline.",
)
@click.option(
    "--since", type=click.DateTime(["%Y-%m-%d"]), help="First UTC day that counts. Default: the first."
)
@click.option("--training", help="Show one training: MODEL/VERSION, or the id of its Dagster run.")
@click.option(
    "--scheduled",
    is_flag=True,
    help="Show for each pipeline how many of its scheduled trainings completed. Without --since: of the last 30 days.",
)
@json_option
def costs(by: "By", since: datetime | None, training: str | None, scheduled: bool, as_json: bool) -> None:
    """Show what trainings reserved: GPU hours, those of them without kept work (idle), core hours, GiB hours, and
    money by the prices of ML_ASSETS_PRICES.

    Trainings that failed, diverged, were cancelled or lost cost, too. Changes nothing.
    """
    if training is not None:
        _say_training(reading().training_cost(training), as_json=as_json)
        return
    first = None if since is None else since.date()
    if first is not None and first > datetime.now(UTC).date():
        raise Problem(f"--since {first} is in the future: name a day up to today")
    if scheduled:
        _say_scheduled(reading().scheduled_trainings(first), as_json=as_json)
        return
    context = reading()
    found, budgets = context.costs(by, first), context.budgets()
    if as_json:
        document = {**asdict(found), "budgets": [asdict(one) for one in budgets]}
        say(json.dumps(document, default=date.isoformat, indent=1))
        return
    _say_costs(found)
    for one in budgets:
        money = f"{one.spent:.2f} of {one.limit:.2f} {one.currency}".rstrip()
        say(f"budget of {one.model} in {one.month}: {one.wrong or money + ', spent' * one.is_spent}")


def _say_scheduled(found: "Sequence[ScheduledShare]", *, as_json: bool) -> None:
    if as_json:
        say(json.dumps([asdict(one) for one in found], indent=1))
        return
    for one in found:
        say(one.says)
    if not found:
        say("No training of a schedule ended. Schedules run while ml-assets ui does")


def _say_costs(found: "Costs") -> None:
    if not found.rows:
        when = "" if found.since is None else f" since {found.since}"
        say(f"No training reserved anything{when}. To train: ml-assets launch MODEL DATE")
        return
    money = _money_head(found)
    head = [found.by, "trainings", "GPU h", "idle h", "core h", "GiB h", *money]
    lines = [head, *(_cells(one, has_money=bool(money)) for one in (*found.rows, found.total))]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    for line in lines:
        first, *others = (
            cell.ljust(width) if not place else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        say("  ".join([first, *others]))
    if found.unpriced:
        say(
            f"The money lacks {found.total.spent.unpriced_gpu_hours:.2f} GPU hours of {', '.join(found.unpriced)}: add "
            "the price to gpu_hour in the file of ML_ASSETS_PRICES"
        )


def _money_head(found: "Costs") -> list[str]:
    return [] if found.total.spent.money is None else [found.currency or "money"]


def _cells(row: "CostRow", *, has_money: bool) -> list[str]:
    spent = row.spent
    parts = (spent.gpu_hours, spent.idle_gpu_hours, spent.core_hours, spent.gib_hours)
    hours = [f"{one:.2f}" for one in parts]
    return [row.name, str(row.trainings), *hours, *([f"{spent.money or 0.0:.2f}"] if has_money else [])]


def _say_training(found: "TrainingCost", *, as_json: bool) -> None:
    if as_json:
        goodput = {**asdict(found.goodput), "seconds": found.goodput.seconds, "share": found.goodput.share}
        say(json.dumps({**asdict(found), "goodput": goodput}, indent=1))
        return
    say(f"{found.model} {found.partition}, training {found.fingerprint[:16]}")
    say(f"{counted(len(found.states), 'attempt')}: {', '.join(found.states)}")
    spent = found.spent
    say(
        f"reserved {spent.gpu_hours:.3f} GPU hours ({spent.idle_gpu_hours:.3f} idle), {spent.core_hours:.3f} core "
        f"hours, {spent.gib_hours:.3f} GiB hours" + _money_of(spent, found.currency)
    )
    if spent.money is not None:
        day, week = spent.money * _MONTH_DAYS, spent.money * _MONTH_DAYS / 7
        say(f"the same training each day costs {day:.2f} a month, each week {week:.2f}")
    parts = found.goodput
    say(f"wall time {parts.seconds:.1f} s, goodput {100 * parts.share:.0f} %")
    for name, seconds in asdict(parts).items():
        say(f"  {name.replace('_', ' '):<10}  {seconds:>10.1f} s")


def _money_of(spent: "Spending", currency: str) -> str:
    if spent.money is None:
        return ""
    lacks = f", without {spent.unpriced_gpu_hours:.3f} GPU hours that have no price" * bool(
        spent.unpriced_gpu_hours
    )
    return f": {spent.money:.2f} {currency}".rstrip() + lacks
