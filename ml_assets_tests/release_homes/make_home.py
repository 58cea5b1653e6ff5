"""`python -m ml_assets_tests.release_homes.make_home`: keep a home as this version writes it.

Types the commands of a person in a copy of the project, and writes `VERSION.tar.xz` and `VERSION.json` beside this
file. Run it once per release, on its last commit; the files never change afterwards. It takes minutes.
"""

import json
import sys
import tempfile
from pathlib import Path

from ml_assets.foundation.checkout import version
from ml_assets_tests.release_homes.kept_home import (
    FOLDER,
    facts_of,
    pack,
    parcels_checkout,
    revision_of,
    versions_of,
)

DAYS = "2024-01-01..2024-01-16"
NEXT_DAY = "2024-01-17"
"""A day that the kept home lacks: a later version builds it."""
TYPED = {
    # One day has a row in quarantine; one is rejected, so this command ends with 1, and the next one accepts it.
    f"ml-assets launch datasets/parcels {DAYS}": 1,
    "ML_ASSETS_AUTHOR=bob ml-assets accept datasets/parcels 2024-01-08 --reason 'a fourth counter'": 0,
    f"ml-assets launch features/parcels {DAYS}": 0,
    "ml-assets launch parcels 2024-01-15": 0,
    "ML_ASSETS_AUTHOR=bob ml-assets promote parcels --reason 'first model'": 0,
    "ml-assets launch parcels/predictions 2024-01-16": 0,
    "ml-assets launch parcels 2024-01-16": 0,
    "ML_ASSETS_AUTHOR=bob ml-assets promote parcels --reason 'a day more'": 0,
    "ML_ASSETS_AUTHOR=bob ml-assets rollback parcels --reason 'too many late'": 0,
}
"""Command → its exit status."""


def main() -> None:
    """Write the home and its facts. Raises `SystemExit` if a command ends otherwise, or the version has a home."""
    packed, facts = FOLDER / f"{version()}.tar.xz", FOLDER / f"{version()}.json"
    if packed.exists():
        raise SystemExit(f"{packed} exists: a release writes its home once")
    with tempfile.TemporaryDirectory(prefix="release-home-") as folder:
        checkout = parcels_checkout(Path(folder))
        for (command, expected), (status, said) in zip(
            TYPED.items(), checkout.answers(list(TYPED)), strict=True
        ):
            sys.stdout.write(f"$ {command}\n{said}\n")
            if status != expected:
                raise SystemExit(f"{command!r} ended with {status}, not {expected}")
        home = checkout.home
        pack(home, packed)  # before this process opens a database of the home
        known = {"revision": revision_of(home), **facts_of(home), "versions": versions_of(home)}
        facts.write_text(json.dumps(known, indent=1) + "\n")
    sys.stdout.write(f"{packed}: {packed.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
