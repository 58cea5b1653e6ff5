"""Commands that show results and change nothing: versions, decisions, canaries, features, dossiers."""

from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ml_assets.cli.opened import reading
from ml_assets.cli.terminal import (
    VERSION,
    Problem,
    html_option,
    json_option,
    say,
    show,
)
from ml_assets.model.release.signing_keys import PublicKey
from resources.words import counted, did_you_mean

if TYPE_CHECKING:
    from ml_assets.components.specs import FeatureTableSpec
    from ml_assets.extras.governance.dossier.verification import Verified


@click.command("card")
@click.argument("model")
@click.argument("version", type=VERSION, required=False)
@html_option
def card(model: str, version: int | None, html: Path | None) -> None:
    """Print the model card of VERSION of MODEL as Markdown. Default: the version in production, or else the newest.

    Changes nothing.
    """
    show(reading().show(model, version).card(), html)


@click.command("predict")
@click.argument("model")
@click.argument("version", type=VERSION, required=False)
@click.option(
    "--csv",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the predictions to this file instead of printing them.",
)
@json_option
def predict(model: str, version: int | None, file: Path | None, as_json: bool) -> None:
    """Predict the partition after the newest one of MODEL's table, such as tomorrow, from what is known before it.

    Its rows are those that the source already holds, such as a plan, and a row for each entity or time of the newest
    partitions. By the version in production, or else the newest; or by VERSION. Changes nothing: no table gets a row.
    """
    from ml_assets.cli.predictions import say_prediction

    found = reading().predict(model, version)
    say_prediction(found, file, as_json=as_json)


@click.command("diff")
@click.argument("model")
@click.argument("before", metavar="V1", type=VERSION)
@click.argument("after", metavar="V2", type=VERSION)
@html_option
def diff(model: str, before: int, after: int, html: Path | None) -> None:
    """Compare versions V1 and V2 of MODEL: rows by day, feature code, settings, and metrics on the same rows.

    Both are scored on the holdout of the version with the later one. Changes nothing.
    """
    from ml_assets.pages.difference_page import difference_page

    show(difference_page(reading().compare(model, before, after)), html)


@click.command("history")
@click.argument("model")
@click.option(
    "--at", "moment", help="Show what was in production at this time (ISO 8601; UTC without a zone)."
)
def history(model: str, moment: str | None) -> None:
    """Show every decision about MODEL, oldest first, with author and reason, from the ledger alone."""
    from ml_assets.model.release.history import lines, state_at

    at = None if moment is None else _time(moment)
    found = reading().history(model)
    for line in lines(found.decisions, found.accounts) if at is None else state_at(found.decisions, at):
        say(line)
    if any(getattr(one, "checked_by", "") == "nobody" for one in found.decisions):
        say("Nobody checked names without “(checked by …)”.")


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        moment = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):  # years 1 and 9999 have no UTC in every zone
        raise Problem(
            f"--at {text!r} is not a time: use 2026-11-23 (its first moment) or 2026-11-23T14:00"
        ) from None
    if moment > datetime.now(UTC):
        raise Problem(f"--at {text!r} is in the future: without --at, history shows every decision until now")
    return moment


@click.command("digest")
@click.argument("model", required=False)
@click.option("--day", type=click.DateTime(["%Y-%m-%d"]), help="UTC day, such as 2026-11-23. Default: today.")
@html_option
def digest(model: str | None, day: datetime | None, html: Path | None) -> None:
    """Print the digest of a UTC day: failures, trainings, evaluations, decisions, waiting versions, late tables, cost.

    With MODEL only that model. Changes nothing.
    """
    from ml_assets.components.assets.digest import declared_subjects
    from ml_assets.components.sensors.ended_runs import ended_launches
    from ml_assets.pages.digest import bounds_of, digest_of, digest_page

    today = datetime.now(UTC).date()
    asked = today if day is None else day.date()
    if asked > today:
        raise Problem(f"--day {asked} is in the future: the digest of today tells what happened until now")
    project = reading().project
    subjects = declared_subjects(project.defs)
    if model is not None:
        if model not in subjects.models:
            raise Problem(f"no model is named '{model}'{did_you_mean(model, subjects.models)}")
        subjects = subjects.only(model)
    launches = ended_launches(project.instance, *bounds_of(asked))
    show(digest_page(digest_of(project.platform, subjects, asked, launches)), html)


@click.command("canary")
@click.argument("model")
def canary(model: str) -> None:
    """Show the canary of MODEL: since when, until when, and each watched metric with its evidence. Takes nothing back.

    Dagster's sensor MODEL_canary takes a canary back whose e-value has reached its limit.
    """
    from ml_assets.use.live.canary_watch import in_lines

    context = reading()
    for line in in_lines(context.project.declared.pipeline(model), context.canary(model)):
        say(line)


@click.command("skew")
@click.argument("model")
@click.argument("partition")
def skew(model: str, partition: str) -> None:
    """Compare the rows of requests for MODEL that arrived in PARTITION with the rows of its feature table.

    Both go through the transform of the version's training. Exit status 1 if an input differs in more rows than
    `served_skew` of the model allows; without this section, in any bit. Values of sensitive columns are hidden. Changes
    nothing.
    """
    from ml_assets.use.live.served_skew import ServedSkewRule, served_skew

    project = reading().project
    spec = project.declared.pipeline(model)
    rule = spec.served_skew or ServedSkewRule()
    spec.partitions.as_cadence.require(partition)
    found = served_skew(spec, project.reader(), project.platform, partition)
    contract = project.declared.feature_table(spec.features.table).contract
    if not any(one.rows for one in found):
        left_out = "; ".join(f"{count:,} {why}" for one in found for why, count in one.left_out.items())
        raise Problem(
            f"nothing to compare: no request for {model} of {partition} has a row in {spec.features.table}"
            + (f" ({left_out})" if left_out else "")
            + ". Send the primary key with each request, and build the table of that day"
        )
    for one in found:
        verb = "differs" if len(one.columns) == 1 else "differ"
        compared = f"{counted(one.rows, 'row')} compared, {counted(len(one.columns), 'input')} {verb}"
        say(f"Version {one.version}: {compared}.")
        for column in one.columns:
            pair = f"{column.served!r} was served, the table has {column.stored!r}"
            is_hidden = any(map(contract.hides, (column.name, *spec.features.primary_key)))
            shown = "values are hidden" if is_hidden else f"{pair} at {column.key}"
            verb = "differs" if column.rows == 1 else "differ"
            allowed = ", which served_skew allows" if rule.allows(column, one.rows) else ""
            say(f"  {column.name}: {counted(column.rows, 'row')} {verb}{allowed}; {shown}")
        if one.rounded:
            names = ", ".join(one.rounded)
            say(f"  {names}: equal as values of the table's type; the last bits were rounded by the client")
        for why, count in one.left_out.items():
            say(f"  not compared: {count:,} rows, because they {why}")
        if one.not_compared:
            say(f"  not compared: {', '.join(one.not_compared)}, which hold blobs")
    if rule.findings(found, spec.features.table):
        raise click.exceptions.Exit(1)


_DAY = click.DateTime(["%Y-%m-%d"])


@click.command("leaktest")
@click.argument("table")
@click.option(
    "--first",
    type=_DAY,
    metavar="DAY",
    help="First partition to build. Default: the test builds the newest 28 partitions.",
)
@click.option(
    "--last", type=_DAY, metavar="DAY", help="Last partition to build. Default: the newest in the lake."
)
@click.option(
    "--cuts",
    type=click.IntRange(min=1),
    help="Number of moments at which the test hides the future, evenly spread. Default: one for each hour of the day "
    "or day of the week, by the shortest partition of the inputs.",
)
def leaktest(table: str, first: datetime | None, last: datetime | None, cuts: int | None) -> None:
    """Hide the facts that became known after some moment, rebuild TABLE (`features/…`) in a fresh process, and compare
    the rows before that moment. Then build the last two partitions each alone, and compare them with the range.

    Exit status 1 if a column changed. Such a column uses the future, is random, depends on state that the function
    keeps, or needs a longer lookback than declared.
    """
    from ml_assets.components.checks.leakage import feature_declaration
    from ml_assets.data.tables.leakage import find_leaks, newest_partitions

    project = reading().project
    spec = project.declared.feature_table(table)
    reader = project.reader()
    low = spec.cadence.key_of(first.date()) if first else None
    high = spec.cadence.key_of(datetime.combine(last, time(23), UTC)) if last else None  # also of hours
    span = [
        key for key in reader.keys(table) if (low or key) <= key <= (high or key) and spec.cadence.is_key(key)
    ]
    if not span:
        raise Problem(_nothing_to_test(table, spec, low, high, len(reader.keys(table))))
    keys = span if first else newest_partitions(spec.cadence, span)
    cadences = {name: one.spec.cadence for name, one in project.declared.table_components().items()}
    report = find_leaks(reader, feature_declaration(spec, cadences), keys, cuts)
    say(report.explain())
    if len(keys) == 1:
        say(f"lookback not tested: {keys[0]} is the only partition of the range; choose an earlier --first")
    if not report.ok:
        raise SystemExit(1)


def _nothing_to_test(
    table: str, spec: "FeatureTableSpec", low: str | None, high: str | None, stored: int
) -> str:
    """Return why there is no partition to test, with the command to type next."""
    if stored:
        return (
            f"the lake has no partition of {table} between {low or 'the start'} and {high or 'the end'}: choose "
            "another --first or --last, or launch these partitions"
        )
    from ml_assets.data.tables.leakage import TESTED_PARTITIONS

    typed = ""
    if (partitions := spec.partitions) is not None:
        # The running partition has no rows yet.
        yesterday = datetime.now(UTC).date() - timedelta(days=1)
        keys = partitions.as_cadence.complete(yesterday)[:TESTED_PARTITIONS]
        typed = f" {keys[0]}..{keys[-1]}" if keys else ""
    return f"the lake has no partition of {table} yet. Build some: ml-assets launch {table}{typed} --with-missing"


@click.command("verify")
@click.argument("what", metavar="FOLDER|MODEL/VERSION")
@click.option(
    "--key", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Public key in PEM."
)
@click.option("--ledger", "with_ledger", is_flag=True, help="Compare its decisions with the ledger, too.")
def verify(what: str, key: Path, with_ledger: bool) -> None:
    """Verify an exported dossier in FOLDER, or the stored one of MODEL/VERSION.

    FOLDER and the key are enough: neither settings nor ledger nor lake are read without --ledger. The error names each
    file that was altered, added or removed since the dossier was signed.
    """
    from ml_assets.extras.governance.dossier import verification

    public = PublicKey.read(key)
    is_folder = Path(what).is_dir() or not _is_version(what)
    found = verification.verify(Path(what), public) if is_folder else _stored(what, public)
    dirty = ", with changes (dossier/code.diff)" if found.is_dirty else ""
    say(f"{found.model} {found.number}: {found.files} files, all as signed with key {public.name[:12]}")
    say(f"  bundle      {found.bundle}")
    say(f"  evaluation  {found.evaluation}, {found.status}")
    say(f"  data        commit {found.lake_commit} of the lake")
    say(f"  code        {', '.join(found.code_commits) or 'no commit is known'}{dirty}")
    say(f"  decisions   {len(found.decisions['rows'])} rows, head {found.decisions['head']}")
    if with_ledger:
        from ml_assets.model.release.history import since
        from resources.ledger import Head

        ledger = reading().project.platform.ledger
        verification.require_in_ledger(found.decisions, ledger)
        say("  ledger      has the same rows, and its chain contains the head")
        place = Head.parse(found.decisions["head"]).place
        for line in since(ledger.models.decisions(found.model), place, found.bundle):
            say(f"  since then: {line}")


def _is_version(what: str) -> bool:
    model, _, number = what.partition("/")
    return bool(model) and number.isdecimal()


def _stored(what: str, key: PublicKey) -> "Verified":
    from ml_assets.context import NotFound
    from ml_assets.context.versions import version_named
    from ml_assets.extras.governance.dossier import stored as dossiers
    from ml_assets.model.release.registry import VersionMissing

    project = reading().project
    try:
        found = version_named(project, what)
    except (NotFound, VersionMissing) as error:
        raise Problem(
            f"{what} is neither a folder nor a registered version. As a folder, it does not exist: give the one that "
            f"ml-assets dossier export wrote. As MODEL/VERSION: {error}"
        ) from error
    row = dossiers.newest_dossier(project.platform.ledger.models, found.model, found.bundle_digest)
    return dossiers.verify_stored(project.bundles, row, key)
