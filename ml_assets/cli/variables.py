"""Settings from environment variables, with errors that name the wrong variables.

Not here: the meaning of settings (`resources.settings`).
"""

import os
from difflib import get_close_matches

from pydantic import ValidationError
from pydantic_settings import SettingsError

from ml_assets.cli.problems import Problem
from resources.settings import KubernetesSettings, Settings

_VARIABLES = {
    (section.__name__, field): f"{section.model_config.get('env_prefix', '')}{field.upper()}"
    for section in (Settings, KubernetesSettings)
    for field in section.model_fields
}
_READ_ELSEWHERE = {"ML_ASSETS_TRACEBACK", "ML_ASSETS_BUILD_CACHE", "ML_ASSETS_SERVER_OF"}


def read_settings(*, on_main: bool = False) -> Settings:
    """Read the settings from the environment. `on_main`: as if ML_ASSETS_ENV were not set.

    `Problem` names each variable with an illegal value. It does not repeat the value, which may be a secret.
    """
    try:
        return Settings(env=None) if on_main else Settings()
    except ValidationError as error:
        wrong = [f"{_VARIABLES[error.title, str(one['loc'][0])]}: {one['msg']}" for one in error.errors()]
    except SettingsError as error:  # it names the field only in its sentence
        wrong = [
            f"{name}: not valid JSON" for (_, field), name in _VARIABLES.items() if f'"{field}"' in str(error)
        ]
    raise Problem("; ".join(wrong) + ". resources/settings.py describes each setting")


def unknown_variables() -> list[str]:
    """Return a sentence for each variable that looks like a setting but is unknown, with the nearest known variable."""
    known = {*_VARIABLES.values(), *_READ_ELSEWHERE}
    return [
        _unknown(name) for name in sorted(os.environ) if name.startswith("ML_ASSETS_") and name not in known
    ]


def _unknown(name: str) -> str:
    nearest = get_close_matches(name, sorted(_VARIABLES.values()), n=1)
    return f"{name} is not a setting" + (f": did you mean {nearest[0]}?" if nearest else ": remove it")
