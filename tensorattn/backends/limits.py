"""What the helpers of generated code hold at once at most: constants that the prediction of memory counts with too."""

MOST_SCORES = 1 << 20  # of an attention: 4 MB of float32
LEAST_KEYS = 128  # of a chunk of them, so that the products are no thin ones
LOOK = 1 << 16  # entries that are looked at together for a bound, if the caller names no fewer
