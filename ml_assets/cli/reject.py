"""`ml-assets reject`: reject a version, so that nobody may promote it."""

import click

from ml_assets.cli.registered import VERSION


@click.command("reject", short_help="Reject a version's evaluation, so that it is not promoted.")
@click.argument("model")
@click.argument("version", type=VERSION)
@click.option("--reason", required=True, help="Reason; recorded with your name in an append-only log.")
def command(model: str, version: int, reason: str) -> None:
    """Reject the newest evaluation of VERSION of MODEL; an earlier approval no longer counts.

    `release.approval` in defs.yaml says who may. A rejection stands until a new evaluation.
    """
    from ml_assets.cli.approve import review

    review(model, version, reason, approves=False)
