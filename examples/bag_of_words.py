"""Counting words: one-hot and bag of words are comparisons of a word's number with a position in the vocabulary.

Formula: e_<w a> = where(word_w == a, 1, 0); count_<s a> = sum[w : word_<s w> == a](1)
Source: "Attention Is All You Need", notes, part A1: the sentences and both tables.
"""

from collections import Counter

import numpy as np

import tensorattn as ta

SENTENCES = ("ram sita ram", "sita ram hari", "hari")
ONE_HOT = "e_<w a> = where(word_w == a, 1, 0)"
BAG_OF_WORDS = "count_<s a> = sum[w : word_<s w> == a](1)"


def main():
    vocabulary = list(dict.fromkeys(word for sentence in SENTENCES for word in sentence.split()))
    longest = max(len(sentence.split()) for sentence in SENTENCES)
    rows = [[vocabulary.index(word) for word in sentence.split()] for sentence in SENTENCES]
    ids = np.array([row + [-1] * (longest - len(row)) for row in rows])  # -1 is no word, so it counts nowhere

    size = {"a": len(vocabulary)}
    hot = ta.compile(ONE_HOT, sizes=size)(word=np.arange(len(vocabulary)))
    np.testing.assert_array_equal(hot, np.eye(len(vocabulary)))
    print(ta.parse(ONE_HOT))
    for word, row in zip(vocabulary, hot, strict=True):
        print(f"  {word:<14} {row}")

    counts = ta.compile(BAG_OF_WORDS, sizes=size)(word=ids)
    expected = [[Counter(sentence.split())[word] for word in vocabulary] for sentence in SENTENCES]
    np.testing.assert_array_equal(counts, expected)
    print(ta.parse(BAG_OF_WORDS))
    for sentence, row in zip(SENTENCES, counts, strict=True):
        print(f"  {sentence:<14} {row}")


if __name__ == "__main__":
    main()
