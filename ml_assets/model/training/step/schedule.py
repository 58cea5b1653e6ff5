"""Learning rate as a pure function of the step: nothing is stored, and a resumed run computes it again."""

import math


def learning_rate(step: int, total_steps: int, peak: float, warmup_fraction: float) -> float:
    """Return the rate of one cycle (linear warm-up to `peak`, cosine decay towards 0) at `step` of 0 … `total_steps` -
    1.

    After Smith & Topin, "Super-Convergence" (2017), with a cosine for the second half.
    """
    warmup = round(total_steps * warmup_fraction)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, total_steps - warmup)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))
