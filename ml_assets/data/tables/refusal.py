"""Errors that refuse to build on unusable inputs, with a sentence for people and facts for a sensor.

Here: the errors. Not here: finding unusable inputs (`guard`), showing them on a page (`components.failures`).
"""

from collections.abc import Mapping, Sequence

from resources.words import name_some

_NAMED = 5
"""Unusable inputs that the message names."""
_KEYS_NAMED = 12
"""Missing partitions that the message names."""


class BuildRefused(Exception):
    """Nothing is built, and a retry cannot help. The message is a whole sentence with the reason and the remedy."""


class InputsRefused(BuildRefused):
    """Inputs are missing, rejected or unusable."""

    def __init__(
        self,
        who: str,
        refused: Mapping[str, str],
        missing: Mapping[str, Sequence[str]] | None = None,
        more: str = "",
    ) -> None:
        """Compose the message: `who` cannot be built because of `refused`, which is input → reason.

        `missing` is table → keys that can be built; the failed-upstream sensor requests them. `more` is appended to the
        message.
        """
        self.refused, self.missing = (
            dict(refused),
            {table: list(keys) for table, keys in (missing or {}).items()},
        )
        named = "; ".join(f"{what} ({why})" for what, why in list(refused.items())[:_NAMED])
        others = f"; and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        wanted = "; ".join(f"{table}: {name_some(keys, _KEYS_NAMED)}" for table, keys in self.missing.items())
        help_missing = (
            f" The sensor build_missing_upstream requests the missing partitions: {wanted}." if wanted else ""
        )
        super().__init__(
            f"{who} refuses to build on unusable inputs: {named}{others}.{help_missing} Fix the source of a "
            f"rejected partition, or accept the partition: ml-assets accept TABLE PARTITION --reason '…'.{more}"
        )
