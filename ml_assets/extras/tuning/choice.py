"""Choice of a study: the values that a training uses in place of the declared ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ml_assets.extras.tuning.spec import Scalar


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Values of the searched parameters for one training, and their source."""

    source: str
    """Digest of the result of a study; for a trial, of the study itself."""
    parameters: Mapping[str, Scalar] = field(hash=False)
    """`hyperparameters.<key>` or `training.<key>` → value."""

    def of(self, part: str) -> dict[str, Scalar]:
        """Return key → value of the parameters under `hyperparameters` or `training`."""
        begins = f"{part}."
        return {
            name.removeprefix(begins): value
            for name, value in self.parameters.items()
            if name.startswith(begins)
        }


def in_words(parameters: Mapping[str, Scalar]) -> str:
    """Return parameters as text for people: `training.learning_rate=0.01, hyperparameters.hidden=64`."""
    return ", ".join(
        f"{name}={f'{value:.6g}' if isinstance(value, float) else value}"
        for name, value in parameters.items()
    )
