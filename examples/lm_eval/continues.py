"""The documents of `continues.yaml`: passages of the packaged novel, each with its next sentence and three of its length.

A toy: it shows that a task below the budget's reach behaves as it should, not how good a model is.
"""

import random
import re
from typing import Any

from datasets import Dataset

from sinkpin import demo

PASSAGES, LENGTH = 60, 3_000  # characters a passage at least; it ends with a sentence
SENTENCE = range(40, 140)  # characters of one that is asked for
END = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["']))(?<!Mr\.)(?<!Mrs\.)(?<!Dr\.)\s+(?=["'_A-Z])""")


def documents(**_: Any) -> dict[str, Dataset]:
    """The same ones every time. lm-eval passes `--model_args` in, which change nothing here."""
    text = " ".join(demo.sample_text().split())
    sentences = END.split(text)
    rng = random.Random(0)
    candidates = [number for number, sentence in enumerate(sentences) if len(sentence) in SENTENCE]
    starts = [number for number in candidates if sum(map(len, sentences[:number])) > LENGTH]
    made = []
    for number in sorted(rng.sample(starts, PASSAGES)):
        first = number
        while sum(map(len, sentences[first:number])) < LENGTH:
            first -= 1
        size = len(sentences[number])
        elsewhere = [
            other
            for other in candidates
            if not first <= other <= number and abs(len(sentences[other]) - size) < 4
        ]
        label, choices = rng.randrange(4), [sentences[other] for other in rng.sample(elsewhere, 3)]
        choices.insert(label, sentences[number])
        made.append({"passage": " ".join(sentences[first:number]), "sentences": choices, "label": label})
    return {"test": Dataset.from_list(made)}
