"""Which past jobs a prediction rests on: the narrowest circle around the job in which one has ended.

The order is fixed: jobs of the user like this one, the user's other jobs, those of the account, those of anyone that
asked for the same, all. It is told from a row of features alone, so that a live prediction, a replayed one and an
explanation cannot disagree. It says what was there to rest on; how much each circle weighs is the business of the
shrinkage (:mod:`helios.predict.history`) and of the model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.kernels import kept
from helios.predict.history import FEATURES

BASES = ("user+size", "user", "group", "size", "all")
"""Codes of :func:`basis_of`, by position: from the narrowest circle to the widest."""

BASIS_WORDS = {
    "user+size": "jobs of this user with this size and time limit",
    "user": "jobs of this user, none of them with this size and time limit",
    "group": "jobs of this account; none of this user has ended",
    "size": "jobs of others with this size, time limit and partition; none of this user or account has ended",
    "all": "all jobs of the cluster; none of this user, account or request has ended",
}
"""What each of ``BASES`` means, for a person; each reads after "rests on"."""

_USER_SIZE_ENDED, _USER_ENDED, _ACCOUNT_MEAN, _REQUEST_LAST = (
    FEATURES.index(name) for name in ("user_size_ended", "user_ended", "account_mean", "request_last_1")
)
_USER_SIZE, _USER, _GROUP, _SIZE, _ALL = range(len(BASES))


def basis_of(features: NDArray[np.float32]) -> NDArray[np.int8]:
    """Say which jobs each prediction rests on.

    Parameters
    ----------
    features : float32 array of shape (n, len(FEATURES))
        As :func:`helios.predict.causal_features` makes them.

    Returns
    -------
    int8 array of shape (n,)
        Positions in ``BASES``. A job of an unknown user has no user's jobs to rest on, whoever submitted it.
    """
    return np.asarray(_bases(features))


@kept
def _bases(features: Any) -> Any:
    bases = np.empty(len(features), dtype=np.int8)
    for row in range(len(features)):
        known = features[row]
        if known[_USER_SIZE_ENDED] > 0:  # the logarithm of one more than their number; NaN, an unknown user, is not
            bases[row] = _USER_SIZE
        elif known[_USER_ENDED] > 0:
            bases[row] = _USER
        elif not np.isnan(known[_ACCOUNT_MEAN]):
            bases[row] = _GROUP
        elif not np.isnan(known[_REQUEST_LAST]):
            bases[row] = _SIZE
        else:
            bases[row] = _ALL
    return bases
