"""Texts as passages, and passages as two parts: one to choose on, one to certify on.

A passage is fed from an empty cache, whatever stands before it in its document; what the tokenizer puts before a text (a
BOS) is put before each. Blocks lie within passages and passages within documents, so that no block straddles two. Not here: a
text as token ids, and a text as the turns of a chat (`cli.passages`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sinkpin.evaluate.advisor.bound import BLOCK
from sinkpin.evaluate.advisor.workloads import Workload
from sinkpin.spans import Span

_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Passage:
    """`ids [tokens]`, scored from index `first` on; `prompt`: so many of them are fed at once. `spans`: what each kind
    of further pins is here."""

    document: str
    ids: tuple[int, ...]
    first: int
    prompt: int | None = None
    spans: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)

    @property
    def blocks(self) -> int:
        return (len(self.ids) - self.first) // BLOCK


def cut(
    document: str, ids: Sequence[int], workload: Workload, length: int, opening: Sequence[int] = ()
) -> list[Passage]:
    """The passages of `length` tokens of a document's `ids`, which begin with `opening`; what is left at its end makes none.

    Where the answer repeats the prompt, it repeats one token more than a block of it, from a place that moves from passage to
    passage through all of the prompt (by the golden ratio, so that few passages cover it evenly, too).
    """
    warm, prompt = workload.warm(length), workload.prompt(length)
    body = list(ids[len(opening) :])
    fresh = (warm - 1 if workload.repeats else length) - len(opening)
    found = []
    for number in range(len(body) // fresh):
        piece = body[number * fresh : (number + 1) * fresh]
        if workload.repeats:
            start = int((number + 1) * _GOLDEN % 1 * (max(fresh - BLOCK, 0) + 1))
            piece += [piece[(start + i) % fresh] for i in range(length - len(opening) - fresh)]
        found.append(Passage(document, (*opening, *piece), warm, prompt))
    return found


def blocks(passages: Sequence[Passage]) -> int:
    return sum(passage.blocks for passage in passages)


def split(passages: Sequence[Passage]) -> tuple[list[Passage], list[Passage]]:
    """The part to choose on, and the part to certify on: about half of the passages each, and never the same.

    Whole documents where that can be: the largest first, each to the part that has fewer passages, the certifying one where both
    have as many. Where one part would get less than a third (one document, or one that outweighs the others), each
    document is split by position: its first half chooses, its second half certifies. Losses are not looked at.
    """
    of: dict[str, list[Passage]] = {}
    for passage in passages:
        of.setdefault(passage.document, []).append(passage)
    chosen: list[str] = []
    certified: list[str] = []
    for name in sorted(of, key=lambda name: -len(of[name])):
        counts = [sum(len(of[each]) for each in part) for part in (chosen, certified)]
        (chosen if counts[0] < counts[1] else certified).append(name)
    choosing = [passage for name in of if name in chosen for passage in of[name]]
    certifying = [passage for name in of if name in certified for passage in of[name]]
    if 3 * min(len(choosing), len(certifying)) < len(passages):
        choosing = [passage for each in of.values() for passage in each[: len(each) // 2]]
        certifying = [passage for each in of.values() for passage in each[len(each) // 2 :]]
    return choosing, certifying
