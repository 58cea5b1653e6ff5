"""Reference page of the environment variables `ML_ASSETS_*`."""

from pydantic_settings import BaseSettings

from deployment.site.yaml_reference import in_code, table
from resources.addresses import Address
from resources.documented import texts_of
from resources.settings import KubernetesSettings, Settings

_INTRO = """# Settings

Made from the code. Each is an environment variable; an empty one counts as not set. None is needed on one machine:
[Servers](../how-to/servers.md) and [Kubernetes](../how-to/kubernetes.md) say which belong together."""

_COMPUTED = {"home": "`~/.ml-assets`", "author": "name of the user"}
"""Default of a field that each machine computes."""


def variables() -> str:
    """Return the Markdown of the page."""
    return "\n\n".join(
        [_INTRO, "## Platform", _table(Settings), "## Trainings on Kubernetes", _table(KubernetesSettings)]
    )


def _table(settings: type[Settings | KubernetesSettings]) -> str:
    prefix = str(settings.model_config.get("env_prefix", ""))
    texts = texts_of(settings)
    rows: list[tuple[str, ...]] = []
    for name, field in settings.model_fields.items():
        computed = field.default_factory
        if isinstance(computed, type) and issubclass(computed, BaseSettings):
            continue  # settings with a table of their own
        made = {} if computed is dict else field.default
        plain = str(made) if isinstance(made, Address) else made
        default = _COMPUTED.get(name) or in_code(plain)
        rows.append((f"`{prefix}{name.upper()}`", default, texts.get(name, "")))
    return table(("variable", "default", "meaning"), rows)
