"""Decisions about a bundle in a dossier: the rows of the ledger as they are stored, with the head of its chain.

Each row has its own digest, so a changed row shows without the ledger. With the ledger, its rows are compared, too.
"""

from collections.abc import Mapping
from typing import Any

from ml_assets.extras.governance.dossier.errors import DossierRefused
from resources.ledger import Head, Ledger, row_digest


def decisions_about(ledger: Ledger, model: str, bundle: str) -> dict[str, Any]:
    """Return the decisions about a bundle, read as one state: `head` of the chain, and `rows`, oldest first."""
    head, rows = ledger.models.stored(model, bundle)
    return {"head": str(head), "rows": rows}


def rows_in_order(decisions: Mapping[str, Any], bundle: str) -> list[dict[str, Any]]:
    """Return the rows of a dossier. Raises `DossierRefused` for a changed or moved row, and one of another bundle."""
    rows: list[dict[str, Any]] = decisions["rows"]
    last = 0
    for row in rows:
        if row["digest"] != row_digest(row):
            raise DossierRefused(
                f"{named(row)} of the decisions was changed: its digest belongs to other content"
            )
        if row["bundle_digest"] != bundle:
            raise DossierRefused(
                f"{named(row)} of the decisions is about another bundle, {row['bundle_digest'][:12]}"
            )
        if row["place"] <= last:
            raise DossierRefused(f"{named(row)} of the decisions was moved: it follows row {last}")
        last = row["place"]
    if Head.parse(decisions["head"]).place < last:
        raise DossierRefused(f"the head {decisions['head']} of the decisions is before their row {last}")
    return rows


def require_in_ledger(decisions: Mapping[str, Any], ledger: Ledger) -> None:
    """Raise `DossierRefused` if a row of the dossier is missing in `ledger` or differs there.

    Then check the chain up to the dossier's head: raises `LedgerChanged` for any other row that was changed since.
    """
    rows: list[dict[str, Any]] = decisions["rows"]
    for row in rows:
        _, stored = ledger.models.stored(row["model"], row["bundle_digest"])
        found = next((one for one in stored if one["place"] == row["place"]), None)
        if found is None:
            raise DossierRefused(f"{named(row)} is missing in the ledger: it was removed or moved since")
        changed = [name for name, value in row.items() if found[name] != value]
        if changed:
            raise DossierRefused(f"{named(row)} of the ledger was changed since: {', '.join(changed)} differ")
    ledger.models.verify(Head.parse(decisions["head"]))


def named(row: Mapping[str, Any]) -> str:
    """Return a row for people."""
    return f"row {row['place']} ({row['kind']} of {row['model']}, {row['at']})"
