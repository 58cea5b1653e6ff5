"""Write every page of the site into build/docs, with its pictures and its style."""

import shutil
from pathlib import Path

from deployment.site.site_links import OUTSIDE, on_site
from ml_assets.foundation.checkout import ROOT

_SITE = ROOT / "build" / "docs"


def main() -> None:
    """Write them anew."""
    docs = {
        path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs")
        for path in ROOT.glob("docs/**/*.md")
    }
    shutil.rmtree(_SITE, ignore_errors=True)
    shutil.copytree(ROOT / "docs" / "images", _SITE / "images")
    shutil.copy(Path(__file__).with_name("site.css"), _SITE)
    for source, place in {**docs, **OUTSIDE}.items():
        (_SITE / place).parent.mkdir(parents=True, exist_ok=True)
        (_SITE / place).write_text(on_site((ROOT / source).read_text(), source, str(place)))


if __name__ == "__main__":
    main()
