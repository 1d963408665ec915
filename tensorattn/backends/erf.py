"""The error function for NumPy arrays: the piecewise rational approximations of fdlibm's `s_erf.c`.

Source: Sun Microsystems, FreeBSD msun `s_erf.c`. How we differ: the split of exp(−x²) into two factors is left out,
since erf = 1 − erfc needs its small tail to absolute precision only.
"""

from __future__ import annotations

import sys

import numpy as np

ERF_AT_ONE = 8.45062911510467529297e-01
NEAR_ZERO = (
    (1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02,
     -5.77027029648944159157e-03, -2.37630166566501626084e-05),
    (1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
     1.32494738004321644526e-04, -3.96022827877536812320e-06),
)  # fmt: skip
NEAR_ONE = (
    (-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01,
     3.18346619901161753674e-01, -1.10894694282396677476e-01, 3.54783043256182359371e-02,
     -2.16637559486879084300e-03),
    (1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
     1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02),
)  # fmt: skip
MIDDLE = (
    (-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e+01,
     -6.23753324503260060396e+01, -1.62396669462573470355e+02, -1.84605092906711035994e+02,
     -8.12874355063065934246e+01, -9.81432934416914548592e+00),
    (1.0, 1.96512716674392571292e+01, 1.37657754143519042600e+02, 4.34565877475229228821e+02,
     6.45387271733267880336e+02, 4.29008140027567833386e+02, 1.08635005541779435134e+02,
     6.57024977031928170135e+00, -6.04244152148580987438e-02),
)  # fmt: skip
FAR = (
    (-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e+01,
     -1.60636384855821916062e+02, -6.37566443368389627722e+02, -1.02509513161107724954e+03,
     -4.83519191608651397019e+02),
    (1.0, 3.03380607434824582924e+01, 3.25792512996573918826e+02, 1.53672958608443695994e+03,
     3.19985821950859553908e+03, 2.55305040643316442583e+03, 4.74528541206955367215e+02,
     -2.24409524465858183362e+01),
)  # fmt: skip


def erf(x: np.ndarray) -> np.ndarray:
    """The error function, entry by entry: 2/√π ∫₀ˣ exp(−t²) dt, to an absolute error of about 1e-16."""
    special = sys.modules.get("scipy.special")
    if special is not None:
        return special.erf(x)
    x = np.asarray(x)
    distance = np.abs(x.astype(np.float64))
    value = np.ones_like(distance)
    near, one, middle, far = distance < 0.84375, distance < 1.25, distance < 1 / 0.35, distance < 6
    one, middle, far = one & ~near, middle & ~one & ~near, far & ~middle & ~one & ~near
    value[near] = _erf_near_zero(distance[near])
    value[one] = ERF_AT_ONE + _ratio(NEAR_ONE, distance[one] - 1)
    value[middle] = _erf_tail(MIDDLE, distance[middle])
    value[far] = _erf_tail(FAR, distance[far])
    value[np.isnan(distance)] = np.nan
    return np.copysign(value, x).astype(x.dtype)


def _erf_near_zero(x: np.ndarray) -> np.ndarray:
    return x + x * _ratio(NEAR_ZERO, x * x)


def _erf_tail(coefficients: tuple[tuple[float, ...], ...], x: np.ndarray) -> np.ndarray:
    return 1 - np.exp(_ratio(coefficients, 1 / (x * x)) - x * x - 0.5625) / x


def _ratio(coefficients: tuple[tuple[float, ...], ...], x: np.ndarray) -> np.ndarray:
    above, below = (np.polynomial.polynomial.polyval(x, part) for part in coefficients)
    return above / below
