"""Watch of a canary: what its requests show so far, and its demotion if they show that it is worse than allowed.

The log of requests can only take a canary back. Nothing here promotes a version, whatever the log says. Not here: the
record of what has counted (`canary_record`), the comparison (`comparison`), Dagster's sensor and the command.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ml_assets.data.tables.reader import TableReader
from ml_assets.model.release.promotion import in_full_minutes
from ml_assets.model.release.releases import NotPromotable, bundles_of, releases_of
from ml_assets.model.release.rollback import demote
from ml_assets.model.release.rules import CanarySection
from ml_assets.model.release.rules_in_force import RulesLog, in_force
from ml_assets.model.release.standing import CANARY, BundleStandings
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.use.live.canary_record import (
    MOST_ENTITIES,
    MOST_OF_CLIENT,
    ROOT,
    CanaryRecord,
    FoundLabels,
    RecordPlace,
    labelled_of,
    look,
)
from ml_assets.use.live.comparison import Comparison, compare, comparisons, worst
from resources.ledger import Demotion, LedgerBusy, Person, Promotion
from resources.platform import Platform

FEW = 50
"""Entities of a canary below which only a canary that fails on most of them is found."""
WATCH = "release.canary.watch"
"""Author of the demotions: the section of `defs.yaml` that asked for them."""


@dataclass(frozen=True, kw_only=True)
class CanaryEvidence:
    """Canary of a model, and the evidence about it so far."""

    canary: Promotion | None
    champion: Promotion | None
    section: CanarySection | None = None
    """Rules of the canary that are in force."""
    compared: tuple[Comparison, ...] = ()
    missing: tuple[str, ...] = ()
    """Reasons why metrics are not compared, or not on all rows."""
    demotion: Demotion | None = None
    """Demotion that this watch has recorded."""

    @property
    def worse(self) -> Comparison | None:
        """Metric that shows the canary to be worse than allowed; None if none does."""
        return worst(self.compared)

    @property
    def why_worse(self) -> str:
        """Reason to take the canary back: the metric that decided, then the others; empty if it is not shown worse."""
        worse = self.worse
        if worse is None:
            return ""
        others = [str(one) for one in self.compared if one is not worse]
        return "; ".join([f"worse than the champion by more than allowed: {worse}", *others])


def evidence(spec: PipelineSpec, platform: Platform) -> CanaryEvidence:
    """Count what became visible since the last look, and return the evidence about the canary. Takes nothing back.

    While another process counts, the evidence is that of its last look. A promotion can refuse a canary that is worse:
    `why_worse` is the reason, and `canary` the promotion it is about. If a bundle, the lake or the labels cannot
    be read, rows that need labels wait, and the evidence has the reason. Raises `ArtifactsError` or `LedgerError` if
    log or ledger do not answer.
    """
    # Those of `defs.yaml` if none are recorded yet.
    section = in_force(RulesLog.read(platform.ledger, spec.name), spec.rules).canary
    standings = BundleStandings.read(platform.ledger.models, spec.name)
    canary, champion = standings.canary, standings.in_production
    if canary is None or champion is None or section is None or not section.watch:
        return CanaryEvidence(
            canary=canary,
            champion=champion,
            section=section,
            missing=_why_not(spec, section, canary, champion),
        )
    place = RecordPlace(
        artifacts=platform.artifacts, model=spec.name, champion=champion, canary=canary, section=section
    )
    missing: list[str] = []
    try:
        with platform.ledger.turn(f"{ROOT}/{spec.name}", patience_seconds=0):
            record = look(
                place,
                spec.features.primary_key if any(one.needs_labels for one in section.watch) else (),
                lambda record: _labels(spec, platform, champion, canary, record, missing),
            )
    except LedgerBusy:  # another process looks at this moment
        record = place.read()
    if not record.metrics:
        record = record.model_copy(update={"metrics": compare(section, ())})
    return CanaryEvidence(
        canary=canary,
        champion=champion,
        section=section,
        compared=comparisons(section, record.metrics),
        missing=(*_missing(spec, canary, record), *missing),
    )


def watch_canary(spec: PipelineSpec, platform: Platform) -> CanaryEvidence:
    """Compare the canary with the champion, and take it back if it is worse than allowed.

    A canary that somebody replaced meanwhile stays as it is. Raises what `evidence` does.
    """
    state = evidence(spec, platform)
    if state.canary is None or state.worse is None:
        return state
    try:
        ended = demote(
            releases_of(platform),
            spec.name,
            by=Person.by_rule(WATCH),
            reason=state.why_worse,
            role=CANARY,
            seen=state.canary,
        )
    except NotPromotable:  # somebody else demoted, promoted or replaced it since
        return CanaryEvidence(canary=None, champion=state.champion, section=state.section)
    return replace(state, demotion=ended.demotion)


def in_lines(spec: PipelineSpec, state: CanaryEvidence) -> Iterator[str]:
    """Yield the state in words, for a person."""
    section, model = state.section, spec.name
    if state.canary is not None:
        yield f"{model} version {state.canary.version} is the canary since {state.canary.at:%Y-%m-%d %H:%M} UTC."
    if state.canary is not None and section is not None:
        if section.share is not None:
            yield f"It answers the requests of {100 * section.share:g} % of the entities ({', '.join(section.by)})."
        if section.bake_hours is not None:
            yield f"It may go into production from {in_full_minutes(section.end_of_bake(state.canary.at))} on."
    if state.champion is not None:
        yield f"Version {state.champion.version} is in production."
    yield from (f"  {one}" for one in (*state.compared, *state.missing))
    if state.worse is not None and section is not None:
        yield (
            f"The canary is worse than allowed. Dagster's sensor {model}_canary takes it back within "
            f"{section.every_seconds} s, if the daemon runs. At once: ml-assets demote {model} --canary --reason '…'"
        )


def _labels(
    spec: PipelineSpec,
    platform: Platform,
    champion: Promotion,
    canary: Promotion,
    record: CanaryRecord,
    missing: list[str],
) -> tuple[str, FoundLabels] | None:
    """Return the commit of the lake with the labels of waiting rows; None and a reason in `missing` without them."""
    bundles = bundles_of(platform)
    reader = TableReader.at(platform.lake, "main")
    if reader.commit_id == record.labels_at:
        return None
    one, other = (bundles.open(it.bundle_digest).facts.question for it in (champion, canary))
    if difference := one.other_than(other):
        missing.append(
            f"metrics of labels are not compared: the champion answers another question than the canary ({difference})"
        )
        return None
    return reader.commit_id, labelled_of(record.waiting, spec, reader, other.classes)


def _missing(spec: PipelineSpec, canary: Promotion, record: CanaryRecord) -> Iterator[str]:
    """Yield the reasons why the evidence is not that of all requests."""
    for of_day in record.damaged.values():
        yield from of_day.values()
    for who, entities in (("the canary", record.of_canary), ("the champion", record.of_champion)):
        if not entities:
            yield f"the log has no request that {who} answered since {canary.at:%Y-%m-%d %H:%M} UTC"
    if record.repeated:
        yield f"{record.repeated} further rows of the same entities do not count"
    if record.repeated and 0 < record.of_canary < FEW:
        yield (
            f"the canary answered {record.of_canary} entities, too few to compare: name more columns in "
            "release.canary.by in defs.yaml, so that there are more"
        )
    if record.crowded:
        yield (f"{record.crowded} rows do not count: {MOST_OF_CLIENT} entities of their client have counted")
    if len(record.entities) >= MOST_ENTITIES:
        yield f"{MOST_ENTITIES} entities have counted: further ones do not"
    yield from (
        f"{count} rows {what}: metrics of labels leave them out" for what, count in record.left_out.items()
    )
    if record.waiting:
        yield f"{len(record.waiting)} answered rows have no label in {spec.features.table} yet"
    if record.labels_fault:
        yield f"metrics of labels are not compared: {record.labels_fault}"


def _why_not(
    spec: PipelineSpec, section: CanarySection | None, canary: Promotion | None, champion: Promotion | None
) -> tuple[str, ...]:
    if section is None or not section.watch:
        return (f"{spec.name} has no `watch` under `release.canary` in defs.yaml: nothing is compared",)
    if canary is None:
        return (f"{spec.name} has no canary",)
    return ("no version is in production: there is nothing to compare the canary with",)
