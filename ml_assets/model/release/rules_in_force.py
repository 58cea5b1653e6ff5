"""Rules of a model's releases as rows of the ledger: comparison with a person's `defs.yaml`, and the change of them.

A person's copy of `defs.yaml` must not decide alone, because whoever edits it could promote without an approval. So the
first registration or decision of a model records its `release` section, and later decisions need the same one. On a
ledger with accounts, a weakening that nobody checked does not count: every reader takes `RulesLog`, never the rows. Not
here: the meaning of the rules (`rules`), the decisions (`promotion`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self, cast

from pydantic import ValidationError

from ml_assets.model.evaluation.spec import Gate
from ml_assets.model.release.rules import (
    NO_RULES,
    ApprovalSection,
    Rules,
    is_among,
    why_not_by,
    why_unchecked,
)
from ml_assets.model.release.signing_keys import PublicKey
from resources.ledger import Account, EvaluationRow, Ledger, LedgerChanged, RulesRow, author_in_words


@dataclass(frozen=True, kw_only=True)
class RulesLog:
    """Recorded rules of a model, oldest first: those that count, and those that do not."""

    counting: tuple[RulesRow, ...] = ()
    """The newest are in force."""
    uncounted: tuple[RulesRow, ...] = ()
    """Rules that somebody accepted before the ledger's first account, and that weaken the rules before them."""

    @classmethod
    def read(cls, ledger: Ledger, model: str) -> Self:
        """Return the rules of a model. Raises `LedgerError`."""
        return cls.of(ledger.models.rules(model), ledger.accounts.all())

    @classmethod
    def of(cls, recorded: Sequence[RulesRow], accounts: Sequence[Account]) -> Self:
        """Return the rules of all rows of one model. `accounts` are all of the ledger.

        Without accounts every row counts. With accounts, a row whose author nobody checked counts only if it is no
        weaker than the rules before it, so whoever gave another's name keeps no door open.
        """
        counting: list[RulesRow] = []
        for row in recorded:
            before = rules_of(counting[-1]) if counting else NO_RULES
            if not accounts or row.checked_by != "nobody" or is_no_weaker(before, rules_of(row)):
                counting.append(row)
        return cls(counting=tuple(counting), uncounted=tuple(one for one in recorded if one not in counting))

    @property
    def newest(self) -> RulesRow | None:
        """Row of the rules in force; None if none are recorded."""
        return self.counting[-1] if self.counting else None

    @property
    def digest(self) -> str:
        """Digest of the rules in force; empty if none are recorded."""
        return self.newest.rules_digest if self.newest else ""

    @property
    def unconfirmed(self) -> RulesRow | None:
        """Row newer than the rules in force that does not count; None without one."""
        newest = self.uncounted[-1] if self.uncounted else None
        return newest if newest and self.newest and newest.place > self.newest.place else None

    @property
    def why_unconfirmed(self) -> str:
        """Sentence about `unconfirmed`, the same on each page and in each command; empty without such a row."""
        return why_uncounted(self.unconfirmed, self) if self.unconfirmed else ""


def is_no_weaker(before: Rules, after: Rules) -> bool:
    """Return True if `after` asks for all that `before` asks for.

    A key may be added. `approval` may exclude more persons. Any other change counts as weaker, because most of them can
    weaken: a shorter bake time, another share, another key of a dossier.
    """
    nothing = NO_RULES.model_dump(mode="json")
    old, new = (one.model_dump(mode="json") for one in (before, after))
    others = (name for name in old if name != "approval" and old[name] != nothing[name])
    return _approves_no_less(before.approval, after.approval) and all(
        old[name] == new[name] for name in others
    )


def _approves_no_less(before: ApprovalSection | None, after: ApprovalSection | None) -> bool:
    if before is None or after is None:
        return before is None
    if not set(after.processes) <= set(before.processes):
        return False
    keeps_reviewers = not before.by or (bool(after.by) and all(is_among(one, before.by) for one in after.by))
    return keeps_reviewers and set(before.not_by) <= set(after.not_by)


def why_uncounted(row: RulesRow, recorded: RulesLog) -> str:
    """Return why `row`, which is among `recorded.uncounted`, does not count, with the remedy."""
    before = [one for one in recorded.counting if one.place < row.place][-1]
    return (
        f"rules {rules_name(row.rules_digest)} of {row.model}, accepted at {row.at:%Y-%m-%d %H:%M} UTC, do not count: "
        f"nobody checked that it was {row.author}, and they may be weaker than rules "
        f"{rules_name(before.rules_digest)} before them ({'; '.join(changes(rules_of(before), rules_of(row)))}). "
        f"Somebody with an account who may approve decides; this puts the rules of defs.yaml in force: ml-assets rules "
        f"accept {row.model} --reason '…'"
    )


def as_json(rules: Rules) -> str:
    """Return the rules for the ledger: all keys with their defaults, as JSON in one order."""
    left_out = {"evaluation"} if rules.evaluation is None else None
    return json.dumps(rules.model_dump(mode="json", exclude=left_out), sort_keys=True)


def rules_of(row: RulesRow) -> Rules:
    """Return the rules of a row. Raises `LedgerChanged` if they are not rules."""
    try:
        return Rules.model_validate_json(row.rules_json)
    except ValidationError as error:
        raise LedgerChanged(
            f"row {row.place} has rules of {row.model} that this version of ml-assets cannot read: {error}",
            how="unreadable",
            place=row.place,
        ) from error


def in_force(recorded: RulesLog, otherwise: Rules = NO_RULES) -> Rules:
    """Return the rules in force; `otherwise` if none are recorded."""
    return rules_of(recorded.newest) if recorded.newest else otherwise


def agree(row: RulesRow, rules: Rules) -> bool:
    """Return True if a row has exactly these rules. Words for people do not decide: different rules may share them."""
    return as_json(rules_of(row)) == as_json(rules)


def rules_name(digest: str) -> str:
    """Return the first 12 of the 64 hex digits of the digest of rules: their name for people."""
    return digest[:12]


def changes(before: Rules, after: Rules) -> list[str]:
    """Return what differs, a line for each key: `approval.by: "bob" → not given`. For people; `agree` decides."""
    old, new = (dict(_flat(one.model_dump(mode="json", exclude_none=True))) for one in (before, after))
    return [
        f"{key}: {old.get(key, 'not given')} → {new.get(key, 'not given')}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]


def in_words(rules: Rules) -> str:
    """Return the rules in one line; keys that are not given are left out."""
    given = dict(_flat(rules.model_dump(mode="json", exclude_none=True)))
    return ", ".join(f"{key}: {value}" for key, value in given.items()) or "none"


def why_other(recorded: RulesLog, rules: Rules) -> str:
    """Return how the rules of a person's `defs.yaml` differ from those in force, with the remedy; empty if they agree.

    Rules that are not recorded yet agree with any.
    """
    row = recorded.newest
    if row is None or agree(row, rules):
        return ""
    before = rules_of(row)
    found = changes(before, rules)
    of_gates = before.evaluation != rules.evaluation
    of_release = as_json(before.model_copy(update={"evaluation": rules.evaluation})) != as_json(rules)
    named = (
        "`release` and `evaluation`"
        if of_gates and of_release
        else "`evaluation`"
        if of_gates
        else "`release`"
    )
    return (
        f"{named} in this defs.yaml differs from rules {rules_name(row.rules_digest)} of {row.model}, which are in "
        f"force since {row.at:%Y-%m-%d %H:%M} UTC ({'; '.join(found)}). Undo the change of defs.yaml, or let somebody "
        f"who may approve accept it: ml-assets rules accept {row.model} --reason '…'"
        + (f". Note that {recorded.why_unconfirmed}" if recorded.unconfirmed else "")
    )


def why_not_changed_by(
    person: str,
    recorded: RulesLog,
    evaluations: Sequence[EvaluationRow],
    promotable: Sequence[EvaluationRow] = (),
    accounts: Sequence[Account] = (),
) -> str:
    """Return why `person` may not change the rules in force; empty if nothing speaks against it.

    Whoever may approve may change them. `evaluations` are all of the model: with `not_by: [author]`, nobody who trained
    it changes the rules for it. `promotable` are the newest evaluations of the bundles that a first promotion could
    follow: on a ledger with `accounts`, somebody must have checked their authors, who could be `person`.
    """
    approval = in_force(recorded).approval
    if approval is None:
        return ""
    where = f"of rules {rules_name(recorded.digest)}"
    if why := why_not_by(person, approval, evaluations, where):
        return why
    unchecked = (why_unchecked(approval, one, accounts, where) for one in promotable)
    return next((f"{why}, or archive its version" for why in unchecked if why), "")


def why_not_under_accepted(
    promoter: str,
    recorded: RulesLog,
    evaluations: Sequence[EvaluationRow],
    accounts: Sequence[Account] = (),
) -> str:
    """Return why `promoter` may not promote a bundle with these evaluations under accepted rules; empty if allowed.

    Otherwise an approver could drop the approval and promote alone, or drop it first and train afterwards. The rules
    before the changes that nobody confirmed decide: they may exclude the promoter or the author from approving.
    Changes that end in the rules before them count for nothing. On a ledger with `accounts`, somebody must know the
    author of the newest evaluation, who could be the acceptor.
    """
    own = _unconfirmed_changes(recorded.counting)
    if not own or agree(own[-1][0], in_force(recorded)):
        return ""
    first = rules_of(own[-1][0]).approval
    who = "somebody else"
    if first is not None and first.by:
        who += f" who might approve under rules {rules_name(own[-1][0].rules_digest)}"
    for before, row in own:
        approval = rules_of(before).approval
        if approval is None:
            continue
        excludes = (
            f"{author_in_words(row)} accepted rules {rules_name(row.rules_digest)} at {row.at:%Y-%m-%d %H:%M} UTC, "
            f"and release.approval.not_by of rules {rules_name(before.rules_digest)} before them excludes the"
        )
        too = f"accept the rules, too: ml-assets rules accept {row.model} --reason '…'"
        if "author" in approval.not_by and is_among(row.author, [one.author for one in evaluations]):
            return f"{excludes} author, and {row.author} ran its evaluation: {who} has to {too}"
        where = f"of rules {rules_name(before.rules_digest)}, before those of {row.author},"
        if evaluations and (why := why_unchecked(approval, evaluations[-1], accounts, where)):
            return f"{why}. Or {who} has to {too}"
        if "promoter" in approval.not_by and is_among(promoter, [row.author]):
            return f"{excludes} promoter: somebody else has to promote it."
    return ""


def is_confirmed_by(person: str, recorded: RulesLog) -> bool:
    """Return True if an acceptance of the rules in force by `person` would say something new: another person changed
    them and `person` may confirm that, or newer rules do not count."""
    own = _unconfirmed_changes(recorded.counting)
    return recorded.unconfirmed is not None or (bool(own) and _confirms(person, own[-1]))


def _unconfirmed_changes(recorded: Sequence[RulesRow]) -> list[tuple[RulesRow, RulesRow]]:
    """Return the newest changes that one person made and nobody confirmed, newest first, each with the rules before it.

    Another person confirms them by accepting rules, if the rules before them let that person approve. Changes by others
    are among them: whoever drops an approval lets everybody accept rules.
    """
    own: list[tuple[RulesRow, RulesRow]] = []
    for before, row in pairwise(recorded):
        if own and _confirms(row.author, own[0]):
            own = []
        own.append((before, row))
    return own[::-1]


def _confirms(person: str, change: tuple[RulesRow, RulesRow]) -> bool:
    """Return True if an acceptance by `person` confirms a change of rules, given as the rows before and after it."""
    before, row = change
    approval = rules_of(before).approval
    may_approve = approval is None or not approval.by or is_among(person, approval.by)
    return may_approve and not is_among(person, [row.author])


def _flat(value: Mapping[str, Any], begin: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted keys and their values in words. Keys in PEM have the name that `dossier keygen` prints."""
    for key, one in value.items():
        if one is None:
            continue
        if isinstance(one, Mapping):
            yield from _flat(cast("Mapping[str, Any]", one), f"{begin}{key}.")
        elif isinstance(one, list):
            items = cast("list[Any]", one)
            mappings = [cast("Mapping[str, Any]", item) for item in items if isinstance(item, Mapping)]
            named = {item["name"]: item for item in mappings if item.get("name")}
            if not items or len(named) < len(items):
                yield f"{begin}{key}", ", ".join(map(_item_in_words, items)) or "none"
                continue
            yield f"{begin}{key}", ", ".join(map(_item_in_words, named))  # their order counts, too
            for name, item in named.items():
                yield f"{begin}{key} {_item_in_words(name)}", _named_in_words(item)
        else:
            yield f"{begin}{key}", _in_words(one)


def _named_in_words(item: Mapping[str, Any]) -> str:
    """Return the keys of a gate or of another named item, a gate's in their order, without defaults of gates."""
    defaults = {key: field.default for key, field in Gate.model_fields.items()}
    keys = [key for key in {**defaults, **item} if key != "name" and item.get(key) != defaults.get(key)]
    return " ".join(f"{key} {one}" for key, one in _flat({key: item.get(key) for key in keys}))


def _item_in_words(item: Any) -> str:
    """Return an item of a list; names in quotes, because a name may contain a comma."""
    words = _in_words(item)
    return json.dumps(item, ensure_ascii=False) if words == item else words


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key} {one}" for key, one in _flat(cast("Mapping[str, Any]", value)))
    if isinstance(value, str) and value.startswith("-----BEGIN"):
        return f"key {PublicKey(value).name}"
    return str(value)
