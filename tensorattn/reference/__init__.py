"""IR -> NumPy arrays by definition: slow, obvious, independent of plans and back ends. The oracle of the tests.

Every reduction visits every tuple. Floats are float64 and integers int64, whatever the inputs' precision.
"""

from tensorattn.reference.evaluating import evaluate, magnitude

__all__ = ["evaluate", "magnitude"]
