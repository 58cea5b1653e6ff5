"""A process that writes verdicts into a ledger as fast as it can; arguments: URL, name, rounds."""

import sys

from resources.ledger import Ledger, NewVerdict

NEW = NewVerdict(
    table="datasets/flights",
    key="2013-01-01",
    content_digest="c1",
    contract_digest="rules",
    status="rejected",
    rows=842,
    body_json="{}",
    run_id="run",
    branch="audit",
)
"""An attempt at a partition, rejected."""


def main(url: str, name: str, rounds: int) -> None:
    """Append one attempt at each of three partitions per round, through a ledger opened anew."""
    for number in range(rounds):
        Ledger(url).record_verdicts(
            [
                NewVerdict(
                    table="datasets/flights",
                    key=key,
                    content_digest=f"{name}-{number}",
                    contract_digest="rules",
                    status="passed",
                    rows=number,
                    body_json="{}",
                    run_id=name,
                    branch="main",
                )
                for key in ("2013-01-01", "2013-01-02", f"{name}-only")
            ]
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
