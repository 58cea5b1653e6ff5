"""The first line of a rank. Apart from what a rank does (entry), so that an agent, which has to name this function,
need not import all that only ranks use: it starts sooner, and so does a training that resumes.
"""


def main(*arguments: str) -> None:
    """See `entry.main`."""
    from ml_assets.training import entry

    entry.main(*arguments)
