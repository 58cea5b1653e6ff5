"""`ml-assets rules`: the rules of a model's releases that are in force, and the change of them."""

import click

from ml_assets.cli.groups import SuggestingGroup
from ml_assets.cli.project import Project, say


@click.group(
    "rules", cls=SuggestingGroup, short_help="Show the rules of releases in force; accept a change of them."
)
def command() -> None:
    """Show the rules of a model's releases that are in force, and accept a change of them.

    The first registration of a model records the rules of its defs.yaml in the ledger: `release`, and the settings of
    `evaluation` by which gates decide. Decisions need the same ones; others are refused until somebody who may approve
    accepts them.
    """


@command.command("show", short_help="Show the rules in force, and how defs.yaml differs.")
@click.argument("model")
def show(model: str) -> None:
    """Show the rules of MODEL that are in force, who recorded them, and how this defs.yaml differs."""
    from ml_assets.components.training_pipeline import TrainingPipeline
    from ml_assets.model.release.rules_in_force import RulesLog, in_words, rules_name, rules_of, why_other
    from resources.ledger import author_in_words

    project = Project.read_only()
    rules = project.component(TrainingPipeline, model).spec.rules
    recorded = RulesLog.read(project.platform.ledger, model)
    row = recorded.newest
    if row is None:
        say(f"No rules of {model} are recorded yet. Its first registration records those of defs.yaml:")
        say(f"    {in_words(rules)}")
        return
    say(f"Rules {rules_name(row.rules_digest)} of {model} are in force since {row.at:%Y-%m-%d %H:%M} UTC,")
    said = f": {row.reason}" if row.reason else ", with the first registration"
    say(f"recorded by {author_in_words(row)}{said}")
    say(f"    {in_words(rules_of(row))}")
    if other := why_other(recorded, rules):
        say(other)
        return
    say("This defs.yaml has the same.")
    if recorded.unconfirmed:
        say(f"Note that {recorded.why_unconfirmed}")


@command.command("accept", short_help="Put the rules of this defs.yaml in force, with a reason.")
@click.argument("model")
@click.option("--reason", required=True, help="Reason; recorded with your name in an append-only log.")
def accept(model: str, reason: str) -> None:
    """Put the rules of this defs.yaml in force for MODEL: `release`, and how the gates of `evaluation` decide.

    Whoever may approve under the rules in force may accept others. With `not_by: [author]`, that excludes everybody who
    ran an evaluation of MODEL; with `not_by: [promoter]`, somebody else has to promote under the new rules.
    """
    from ml_assets.components.training_pipeline import TrainingPipeline
    from ml_assets.model.release.releases import releases_of
    from ml_assets.model.release.reviews import accept_rules
    from ml_assets.model.release.rules_in_force import RulesLog, changes, in_words, rules_name, rules_of
    from resources.ledger import author_in_words

    project, acting = Project.to_decide()
    rules = project.component(TrainingPipeline, model).spec.rules
    before = RulesLog.read(project.platform.ledger, model).newest
    row = accept_rules(releases_of(project.platform), model, rules, by=acting, reason=reason)
    if before and row.place == before.place:
        say(f"Nothing changed: rules {rules_name(row.rules_digest)} of {model} are in force already.")
        return
    say(f"Rules {rules_name(row.rules_digest)} of {model} are in force since {row.at:%Y-%m-%d %H:%M} UTC,")
    say(f"accepted by {author_in_words(row)}: {row.reason}")
    for line in changes(rules_of(before), rules) if before else [in_words(rules)]:
        say(f"    {line}")
    if acting.checked_by == "nobody":
        say(
            f"Nobody checked that you are {acting.name}: the name is ML_ASSETS_AUTHOR, or your account of the "
            "operating system."
        )
