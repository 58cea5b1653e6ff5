"""Functions whose last bits are those of any processor, for tables whose digests or figures are recorded."""

import math

import numpy as np

exp = np.vectorize(math.exp, otypes=[np.float64])
"""Exponential function. numpy's own has other last bits on a processor with AVX-512."""
