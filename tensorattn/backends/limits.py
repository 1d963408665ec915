"""What the helpers of generated code hold at once at most: a constant that the prediction of memory counts with too."""

MOST_SCORES = 1 << 20  # of an attention: 4 MB of float32
