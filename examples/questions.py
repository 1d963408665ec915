"""Questions about short stories: "Mary took the ball. Mary went to the garden. Where is the ball?"

A sentence is one fact, (key, value): "Mary took the ball" is ball → Mary, "Mary went to the garden" is
Mary → garden. Nobody tells the model what a question is about: hop 1 must learn to find who has the thing, hop 2 where
that person is. People move twice now and then, and the chain sees no order; one answer in ten is wrong on purpose.
So no model of this kind can be right always: what is possible in principle is printed beside what is reached.
Source: a task of this project in the manner of Weston et al. 2015, "Towards AI-Complete Question Answering".
"""

import re
from collections import Counter

import numpy as np

import tensorattn as ta

PEOPLE = ("Mary", "John", "Sandra", "Daniel")
THINGS = ("ball", "book", "key", "apple")
PLACES = ("garden", "kitchen", "office", "hall", "cellar")
WORDS = (*THINGS, *PEOPLE, *PLACES)
NUMBER = {word: n for n, word in enumerate(WORDS)}
SENTENCE = re.compile(r"(\w+) (took|went to) the (\w+)")
WRONG, MOVES_AGAIN = 0.1, 0.3


def tell(rng):
    """A story as sentences, the thing asked for, and the answer that is given."""
    things = rng.permutation(THINGS)[:3].tolist()
    people = rng.permutation(PEOPLE)[:3].tolist()
    sentences = [f"{person} took the {thing}" for person, thing in zip(people, things, strict=True)]
    last = {}
    for person in people:
        for _ in range(1 + (rng.random() < MOVES_AGAIN)):
            last[person] = str(rng.choice(PLACES))
            sentences.append(f"{person} went to the {last[person]}")
    asked = int(rng.integers(3))
    answer = last[people[asked]]
    if rng.random() < WRONG:
        answer = str(rng.choice([place for place in PLACES if place != answer]))
    return sentences, things[asked], answer


def facts(sentences):
    """(key, value) of each sentence."""
    found = []
    for sentence in sentences:
        who, verb, what = SENTENCE.fullmatch(sentence).groups()
        found.append((what, who) if verb == "took" else (who, what))
    return found


def encode(story):
    """Keys, values, query and target as numbers."""
    sentences, thing, answer = story
    pairs = [(NUMBER[key], NUMBER[value]) for key, value in facts(sentences)]
    keys, values = np.array(pairs).T
    return keys, values, NUMBER[thing], PLACES.index(answer)


def possible(story):
    """How often the best guess is right for one who knows the rules but not the order of the moves."""
    sentences, thing, _ = story
    known = facts(sentences)
    (owner,) = [value for key, value in known if key == thing]
    places = Counter(value for key, value in known if key == owner)
    share = {place: count / places.total() for place, count in places.items()}
    other = WRONG / (len(PLACES) - 1)
    return max(s * (1 - WRONG) + (1 - s) * other for s in share.values())


def main():
    rng = np.random.default_rng(3)
    stories, others = ([tell(rng) for _ in range(count)] for count in (3000, 3000))
    rows = [encode(story) for story in stories]
    estimator = ta.latent.ChainedAttentionEstimator(2, len(WORDS), len(PLACES), pseudo_count=0.5)
    found = ta.latent.fit(rows, estimator, 150, 0.1, rng=0, restarts=3, accelerate=True)
    model = found.model

    encoded = model.dist_to_encoder().seq_encode([encode(story) for story in others])
    contexts = (encoded.context_keys, encoded.context_values, encoded.query)
    answers = model.predict_proba(*contexts, mask=encoded.keep).argmax(axis=1)
    reached = np.mean(answers == encoded.target)
    bound = np.mean([possible(story) for story in others])
    most_common = np.bincount(encoded.target).max() / len(encoded)
    print(f"possible in principle {bound:.3f}, reached {reached:.3f}, by always the same answer {most_common:.3f}")
    assert abs(reached - bound) < 4 * np.sqrt(bound * (1 - bound) / len(others))
    assert most_common < 0.3

    sentences, thing, answer = others[0]
    first, second = model.decode(encode(others[0])).positions
    print(". ".join(sentences) + f". Where is the {thing}? {answer}.")
    print(f"  hop 1: {sentences[first]}; hop 2: {sentences[second]}")
    assert thing in sentences[first]
    assert facts(sentences)[second][0] == facts(sentences)[first][1]


if __name__ == "__main__":
    main()
