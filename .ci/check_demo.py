"""Check the results of the demo. Read its output, whose last line is one JSON object.

Seconds are printed, not checked: a busy machine must not fail a change.
`benchmarks/claims/pipelines/end_to_end.py` checks them.
"""

import json
import sys
from pathlib import Path

LEAST_AUC = 0.725
MOST_LOG_LOSS = 0.503


def main(log: Path) -> int:
    """Check the last line; return the exit status."""
    outcome = json.loads(log.read_text().strip().splitlines()[-1])
    print(f"AUC {outcome['auc']:.4f} (at least {LEAST_AUC}), log loss {outcome['logloss']:.4f}", end=" ")
    print(f"(at most {MOST_LOG_LOSS}), gate {outcome['gate']}, {outcome['seconds']:.0f} s")
    for stage, seconds in outcome["stages"].items():
        print(f"  {stage:<24}{seconds:>7.1f} s")
    return 0 if outcome["auc"] >= LEAST_AUC and outcome["logloss"] <= MOST_LOG_LOSS else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
