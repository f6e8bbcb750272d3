# SPDX-License-Identifier: Apache-2.0
"""One budget for the steps of a run."""
from __future__ import annotations

from collections.abc import Iterable

from . import _atomo


def budget_shares(rates: Iterable[float], power: float = 0.75, least: float = 0.1, momentum: float = 0.9) -> list[float]:
    """Shares of a budget for the steps of a run (`Compressor.budget_share`) by the learning rate of each:
    rate^power, at least `least` of the largest, divided by their mean, so that a run has the bytes that it would have had. A
    step's rate is the sum of its own and later ones, each times what is left of the step's gradient in a first moment that
    decays by `momentum`, as Adam's (docs/one-price.md).

    >>> [round(share, 2) for share in budget_shares([0.0, 1.0, 0.5, 0.25], momentum=0)]
    [0.2, 1.95, 1.16, 0.69]

    Raises `atomo.Error` for rates that are negative, not finite or all 0, a power outside [0, 4], a least share outside (0, 1], a momentum
    outside [0, 1).
    """
    return _atomo.budget_shares([float(rate) for rate in rates], power, least, momentum)

