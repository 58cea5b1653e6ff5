"""The source: documentation of the services of AWS, by the date of each service's API version.

botocore ships a file for each API version, `data/SERVICE/DATE/service-2.json.gz`. The date in the path is the date of
the version. Its texts were edited afterwards, so the date orders services by their age. It does not say when a sentence
was written, and nobody should read a holdout here as a forecast.
"""

import gzip
import json
import re
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from ml_assets.defs.package_files import package_folder

LAST_WEEK = date(2018, 12, 24)
_TAG = re.compile(r"<[^>]+>")
_SPACE = re.compile(r"\s+")


def read_documentation(week: date) -> pl.DataFrame:
    """API versions of the week that starts on Monday `week`: one row for each service, none in some weeks.

    `text` is the description of the service, then those of its operations in the order of their names, without HTML,
    each on a line. `published_at` (UTC) is the end of the version's day. The same package gives the same rows.
    """
    days = {(week + timedelta(days=n)).isoformat() for n in range(7)}
    found = sorted(
        path
        for path in (package_folder("botocore") / "data").glob("*/*/service-2.json.gz")
        if path.parent.name in days
    )
    versions = [(path.parent.parent.name, date.fromisoformat(path.parent.name)) for path in found]
    return pl.DataFrame(
        {
            "week": [week] * len(found),
            "service": [service for service, _ in versions],
            "version": [version for _, version in versions],
            "published_at": [
                datetime.combine(version + timedelta(days=1), time(), UTC) for _, version in versions
            ],
            "text": [_text(path) for path in found],
        },
        schema={
            "week": pl.Date,
            "service": pl.String,
            "version": pl.Date,
            "published_at": pl.Datetime("us", "UTC"),
            "text": pl.String,
        },
    )


def latest() -> date:
    """Return the latest day that this pipeline reads: the Sunday of its last week."""
    return LAST_WEEK + timedelta(days=6)


def _text(path: Path) -> str:
    with gzip.open(path) as file:
        service: dict[str, Any] = json.load(file)
    operations = [service["operations"][name] for name in sorted(service["operations"])]
    texts = (_plain(part.get("documentation", "")) for part in (service, *operations))
    return "\n".join(text for text in texts if text)


def _plain(html: str) -> str:
    return _SPACE.sub(" ", _TAG.sub(" ", html)).strip()
