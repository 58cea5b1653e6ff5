"""A process that writes verdicts into a ledger as fast as it can; arguments: URL, name, rounds."""

import sys

from resources.ledger import Ledger, NewEvaluation, NewVerdict

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


EVALUATION = NewEvaluation(
    model="m",
    partition="2013-12-30",
    bundle_digest="b",
    evaluation_digest="e",
    champion_digest=None,
    status="blessed",
    summary="Blessed.",
    report="file:///report.html",
    run_id="run",
)


def write_one_of_each(ledger: Ledger) -> None:
    """One evaluation, semantic version, promotion and demotion of the model `m`."""
    log = ledger.models
    log.record_evaluation(EVALUATION)
    log.name_version("m", "b", schema_digest="s", recipe_digest="r", choose=lambda known: "1.0.0")
    promotion = log.promote(
        "m", "1", "production", author="ada", reason="first", bundle_digest="b", evaluation_digest="e"
    )
    log.demote(promotion, author="ada", reason="wrong prices")


def assert_one_of_each(ledger: Ledger) -> None:
    """What `write_one_of_each` wrote is there."""
    log = ledger.models
    assert [one.name for one in log.evaluations("m")] == ["e"]
    assert log.name_version("m", "b", schema_digest="", recipe_digest="", choose=lambda known: "") == "1.0.0"
    (promotion,) = log.promotions("m")
    assert promotion.demotion is not None
    assert (promotion.evaluation_digest, promotion.demotion.reason) == ("e", "wrong prices")


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
