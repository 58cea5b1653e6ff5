"""Page of a digest, for a terminal and as HTML. Arranges; reads nothing."""

from ml_assets.foundation.reports.page import Actions, Bullets, Chapter, Paragraph, WrittenPage
from ml_assets.model.steps.nightly_digest import Digest, Line
from resources.words import counted


def digest_page(digest: Digest) -> WrittenPage:
    """Return the page: first what needs a person, then what happened."""
    chapters = (
        ("Failed or refused", digest.failed),
        ("Waiting for approval", digest.waiting),
        ("Late", digest.late),
        ("Rejected partitions", digest.rejected),
        ("Evaluations", digest.evaluated),
        ("Decisions", digest.decided),
        ("Retrainings requested", digest.requested),
        ("Trainings", digest.trained),
        ("Scheduled trainings", digest.scheduled),
    )
    needs = digest.needs_a_person
    return WrittenPage(
        title=f"Digest of {digest.day}",
        about="0:00 to 24:00 UTC · "
        + (f"{counted(needs, 'line')} for a person to act on" if needs else "nothing needs a person"),
        headline=digest.headline,
        tone="undecided" if needs or digest.missing else "blessed",
        chapters=(
            *(Chapter(title, (_actions(lines),)) for title, lines in chapters if lines),
            *([Chapter("Spent", (Paragraph(_spent(digest)),))] if digest.spent else []),
            *([Chapter("Not known", (Bullets(digest.missing),))] if digest.missing else []),
        ),
    )


def _actions(lines: tuple[Line, ...]) -> Actions:
    return Actions(tuple((line.what, line.next) for line in lines))


def _spent(digest: Digest) -> str:
    return ", ".join(f"{value:.3g} {name.replace('_', ' ')}" for name, value in digest.spent.items())
