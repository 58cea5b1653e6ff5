"""Refusal to build on inputs: the sentence for people, and the facts a sensor acts on.

Here: the errors. Not here: finding what is unusable (`guard`), showing it on a page (`components.failures`).
"""

from collections.abc import Mapping, Sequence

from resources.words import name_some

_NAMED = 5
"""Unusable inputs that the message names."""
_KEYS_NAMED = 12
"""Missing partitions that it names."""


class BuildRefused(Exception):
    """Nothing is built; the message is a whole sentence that says why and what helps. Trying again cannot help."""


class InputsRefused(BuildRefused):
    """Inputs are missing, rejected or unusable."""

    def __init__(
        self,
        who: str,
        refused: Mapping[str, str],
        missing: Mapping[str, Sequence[str]] | None = None,
        more: str = "",
    ) -> None:
        """`who` cannot be built because of `refused`: what cannot be used → why, for people.

        `missing`: table → keys that could simply be built, which the failed-upstream sensor then requests. `more`: the
        end of the message.
        """
        self.refused, self.missing = (
            dict(refused),
            {table: list(keys) for table, keys in (missing or {}).items()},
        )
        named = "; ".join(f"{what} ({why})" for what, why in list(refused.items())[:_NAMED])
        others = f"; and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        wanted = "; ".join(f"{table}: {name_some(keys, _KEYS_NAMED)}" for table, keys in self.missing.items())
        help_missing = (
            f" Missing partitions are requested by the sensor build_missing_upstream: {wanted}."
            if wanted
            else ""
        )
        super().__init__(
            f"{who} refuses to build on unusable inputs: {named}{others}.{help_missing} A rejected partition needs its "
            f"source mended, or a person's word: ml-assets accept TABLE PARTITION --reason '…'.{more}"
        )
