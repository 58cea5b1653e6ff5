"""`ml-assets review`: serve the page on which a person reviews versions."""

import click

from ml_assets.cli.project import Project, say

LOOPBACK = "127.0.0.1"


@click.command("review", short_help="Serve the page on which a person approves or rejects versions.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=3001, show_default=True, help="Port of the page."
)
@click.option(
    "--host",
    default=LOOPBACK,
    show_default=True,
    help="Address to listen on. Another one than loopback needs accounts (`ml-assets accounts`).",
)
def command(port: int, host: str) -> None:
    """Serve a page with the versions that wait for an approval, until Ctrl-C.

    A reviewer signs in with the token of an account, reads report and differences, and approves or rejects with a
    reason. Without accounts the page decides under your name, and says so. Behind a proxy, ML_ASSETS_REVIEW_URL is the
    address of the page in browsers: only that page may send forms.
    """
    import uvicorn

    from ml_assets.cli.problems import Problem
    from ml_assets.components.training_pipeline import TrainingPipeline
    from ml_assets.extras.governance.review.desk import ReviewDesk
    from ml_assets.extras.governance.review.review_pages import review_app
    from resources.web.bounded_uvicorn import bounded_options

    project = Project.here()
    if host != LOOPBACK and not project.platform.ledger.accounts.all():
        raise Problem(
            f"on {host} everybody in the network could decide under your name, because this ledger has no accounts: "
            "first ml-assets accounts add NAME --administrator"
        )
    url = project.settings.review_url
    if host != LOOPBACK and url is None:
        raise Problem(
            f"on {host} the page needs its address in browsers: set ML_ASSETS_REVIEW_URL to https://…"
        )
    specs = {one.spec.name: one.spec for one in project.components(TrainingPipeline)}
    address = str(url or "") or f"http://{host}:{port}"
    say(f"Reviews on {address}; Ctrl-C stops the page.")
    app = review_app(ReviewDesk(project.platform, specs), address)
    uvicorn.run(app, host=host, port=port, log_level="warning", ws="none", **bounded_options())
