"""Parts of a step on one rank: model, loss, precision, memory, and the trial before the first step."""
