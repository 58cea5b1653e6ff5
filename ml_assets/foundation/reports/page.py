"""Page of a report: the template of a stage, within the frame that all reports share.

A template extends `page.html.j2` and fills its blocks; `parts.html.j2` has a picture, a lineage and a chapter.
"""

from typing import Any

from ml_assets.foundation.reports.numbers import count, number, share
from ml_assets.foundation.reports.plain_text import visible


def rendered(package: str, template: str, filters: dict[str, Any], **facts: Any) -> str:
    """Return the HTML of `template`, a file beside the modules of `package`. Equal facts give equal bytes.

    Text is escaped, and its controls are visible. A fact that the template needs and did not get is an error.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    # Any, because jinja's annotations do not cover the filters.
    environment: Any = Environment(
        loader=ChoiceLoader([PackageLoader(one, "") for one in (package, __package__ or "")]),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "share": share, "count": count, **filters}
    return environment.get_template(template).render(**facts)


def _shown(value: Any) -> Any:
    """Return what a page shows for a value. HTML that a template made itself stays as it is."""
    return visible(value) if type(value) is str else value
