"""`ChainedAttentionDataEncoder`: observations to arrays."""

from __future__ import annotations

from typing import Any

from tensorattn.latent import accepting
from tensorattn.latent.rows import Rows


class ChainedAttentionDataEncoder:
    """Encodes observations (context_keys, context_values, query, target[, mask]), contexts of any lengths."""

    def __repr__(self) -> str:
        return "ChainedAttentionDataEncoder()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChainedAttentionDataEncoder)

    def __hash__(self) -> int:
        return hash(type(self))

    def seq_encode(self, x: Any) -> Rows:
        """Encoded observations; they unpack as four integer arrays (n, N), (n, N), (n,), (n,).

        Raises: ShapeError `E-RANK` `E-EXTENT` `E-RANGE` `E-EMPTY`, DTypeError `E-DTYPE`.
        """
        return accepting.observations(x)
