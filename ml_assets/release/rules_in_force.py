"""Rules of a model's releases as rows of the ledger: comparison with a person's `defs.yaml`, and the change of them.

A person's copy of `defs.yaml` must not decide alone, because whoever edits it could promote without an approval. So the
first registration or decision of a model records its `release` section, and later decisions need the same one. Not
here: the meaning of the rules (`rules`), the decisions (`promotion`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from ml_assets.dossier.keys import PublicKey
from ml_assets.release.rules import NO_RULES, ReleaseSection, is_among, why_not_by
from resources.ledger import EvaluationRow, LedgerChanged, RulesRow, author_in_words


def as_json(rules: ReleaseSection) -> str:
    """Return the rules for the ledger: all keys with their defaults, as JSON in one order."""
    return json.dumps(rules.model_dump(mode="json"), sort_keys=True)


def rules_of(row: RulesRow) -> ReleaseSection:
    """Return the rules of a row. Raises `LedgerChanged` if they are not a `release` section."""
    try:
        return ReleaseSection.model_validate_json(row.rules_json)
    except ValidationError as error:
        raise LedgerChanged(
            f"row {row.place} has rules of {row.model} that this version of ml-assets cannot read: {error}"
        ) from error


def in_force(recorded: Sequence[RulesRow]) -> ReleaseSection:
    """Return the newest of the recorded rules; no rules if none are recorded."""
    return rules_of(recorded[-1]) if recorded else NO_RULES


def rules_name(digest: str) -> str:
    """Return the first 12 of the 64 hex digits of the digest of rules: their name for people."""
    return digest[:12]


def changes(before: ReleaseSection, after: ReleaseSection) -> list[str]:
    """Return what differs, a line for each key: `approval.by: bob → not given`."""
    old, new = (dict(_flat(one.model_dump(mode="json", exclude_none=True))) for one in (before, after))
    return [
        f"{key}: {old.get(key, 'not given')} → {new.get(key, 'not given')}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]


def in_words(rules: ReleaseSection) -> str:
    """Return the rules in one line; keys that are not given are left out."""
    given = dict(_flat(rules.model_dump(mode="json", exclude_none=True)))
    return ", ".join(f"{key}: {value}" for key, value in given.items()) or "none beside the gates"


def why_other(recorded: Sequence[RulesRow], rules: ReleaseSection) -> str:
    """Return how the rules of a person's `defs.yaml` differ from those in force, with the remedy; empty if they agree.

    Rules that are not recorded yet agree with any.
    """
    if not recorded or not (found := changes(rules_of(recorded[-1]), rules)):
        return ""
    row = recorded[-1]
    return (
        f"`release` in this defs.yaml differs from rules {rules_name(row.rules_digest)} of {row.model}, which are in "
        f"force since {row.at:%Y-%m-%d %H:%M} UTC ({'; '.join(found)}). Undo the change of defs.yaml, or let somebody "
        f"who may approve accept it: ml-assets rules accept {row.model} --reason '…'"
    )


def why_not_changed_by(
    person: str, recorded: Sequence[RulesRow], evaluations: Sequence[EvaluationRow]
) -> str:
    """Return why `person` may not change the rules in force; empty if nothing speaks against it.

    Whoever may approve may change them. `evaluations` are all of the model: with `not_by: [author]`, nobody who trained
    it changes the rules for it.
    """
    approval = in_force(recorded).approval
    return why_not_by(person, approval, evaluations) if approval is not None else ""


def why_not_under_own_rules(promoter: str, recorded: Sequence[RulesRow]) -> str:
    """Return why `promoter` may not promote under rules that the same person has accepted; empty if that is allowed.

    Otherwise an approver could drop the approval and promote alone. The rules before the change decide: they ask for
    two persons if they exclude the promoter from approving.
    """
    for before, row in zip(reversed(recorded[:-1]), reversed(recorded), strict=False):
        if not is_among(promoter, [row.author]):
            return ""
        approval = rules_of(before).approval
        if approval is not None and "promoter" in approval.not_by:
            return (
                f"{author_in_words(row)} accepted rules {rules_name(row.rules_digest)} at {row.at:%Y-%m-%d %H:%M} UTC, "
                f"and release.approval.not_by of rules {rules_name(before.rules_digest)} before them excludes the "
                "promoter: somebody else has to promote it."
            )
    return ""


def _flat(value: Mapping[str, Any], begin: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted keys and their values in words. Keys in PEM have the name that `dossier keygen` prints."""
    for key, one in value.items():
        if isinstance(one, Mapping):
            yield from _flat(cast("Mapping[str, Any]", one), f"{begin}{key}.")
        elif isinstance(one, list):
            items = [_in_words(item) for item in cast("list[Any]", one)]
            yield f"{begin}{key}", ", ".join(items) or "none"
        else:
            yield f"{begin}{key}", _in_words(one)


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key} {one}" for key, one in _flat(cast("Mapping[str, Any]", value)))
    if isinstance(value, str) and value.startswith("-----BEGIN"):
        return f"key {PublicKey(value).name[:12]}"
    return str(value)
