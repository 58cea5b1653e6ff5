"""Parts of a step on one rank: model, loss, precision, memory, and the preflight before the first step."""
