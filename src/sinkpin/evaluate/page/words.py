"""The comparison in words: the verdict as a headline, and the findings under it.

Everything here is plain text: whoever puts it into a page escapes it (`page.markup`). What pins and policies do is said
by `evaluate.sentence`, as on the terminal. Not here: what to do now (`advice`), tables and pictures.
"""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sinkpin.evaluate.documents import Document
from sinkpin.evaluate.record import ArmResult, Comparison
from sinkpin.evaluate.schema import checked
from sinkpin.evaluate.sentence import sentence, warnings
from sinkpin.page.words import number, percent

FORGETS = "A bounded cache forgets: what an arm evicted is gone for the model, and nothing here extends the context window."
BLOCKS = 20  # fewer give no verdict

_ORDER = ("better", "equivalent", "inconclusive", "worse")
_NAMED = 3  # arms that a sentence names
_AGREES = 0.95  # of most likely next tokens: below, equal loss is not the same text

Arm = dict[str, Any]


def headline(document: Document) -> str:
    """The verdict in one line. That there is none is an answer too."""
    full, *others = document["arms"]
    if not others:
        return "Only the full cache was run: there is nothing to compare"
    judged = [arm for arm in others if arm.get("verdict")]
    if not judged:
        blocks = document.get("blocks")
        if blocks is None:
            return "No verdict: this run states no intervals"
        return f"No verdict: {_count(blocks['count'], 'block')} of {blocks['size']} tokens, and {BLOCKS} are needed"
    if best := recommended(document):
        share = percent(best["kv_bytes_steady"] / full["kv_bytes_steady"])
        said = "better than" if best["verdict"] == "better" else "equivalent to"
        return f"{best['name']} is {said} the full cache, with {share} of its bytes"
    tally = _tally(judged)
    if set(tally) == {"worse"}:
        nearest = min(judged, key=lambda arm: float(arm["delta_nll"]))
        return (
            f"{'The bounded cache is' if len(judged) == 1 else f'All {len(judged)} bounded caches are'} worse than the "
            f"full one; {nearest['name']} loses least, with {times(nearest['delta_nll'])} its perplexity"
        )
    return f"No bounded cache is shown to be as good as the full one: {_told(tally)}"


def recommended(document: Document) -> Arm | None:
    """Of the arms that are as good as the full cache and smaller, the smallest."""
    full, *others = document["arms"]
    good = [
        arm
        for arm in others
        if arm.get("verdict") in ("better", "equivalent") and arm["kv_bytes_steady"] < full["kv_bytes_steady"]
    ]
    return min(good, key=lambda arm: (arm["kv_bytes_steady"], arm["delta_nll"]), default=None)


def findings(document: Document) -> list[str]:
    """The sentences under the headline."""
    result = record(document)
    others = document["arms"][1:]
    said = []
    judged = [arm for arm in others if arm.get("verdict")]
    margin = document.get("margin")
    if judged:
        means = ""
        if margin is not None:
            share = percent(math.expm1(margin))
            means = f" Equivalent: the loss differs by less than {number(margin)} nats a token, {share} of perplexity, stated before the run."
        unjudged = len(others) - len(judged)
        rest = f", {unjudged} without a verdict" if unjudged else ""
        said.append(f"Of {_count(len(others), 'bounded cache')}: {_told(_tally(judged))}{rest}.{means}")
    said.append(sentence(result))
    if parted := sorted((arm for arm in others if arm.get("departs") is not None), key=_departs):
        named = ", ".join(f"{arm['name']} at token {arm['departs']:,}" for arm in parted[:_NAMED])
        more = f" and {len(parted) - _NAMED} more later" if len(parted) > _NAMED else ""
        said.append(
            f"Fine at first is not fine later: {named}{more} {'departs' if len(parted) == 1 else 'depart'} from the full "
            "cache for good."
        )
    best = recommended(document)
    if best and best.get("top1_agreement") is not None and best["top1_agreement"] < _AGREES:
        said.append(
            f"Equal loss is not the same text: in {percent(1 - best['top1_agreement'])} of places the most likely next token "
            f"of {best['name']} is not the full cache’s."
        )
    said += [f"{warning[0].upper()}{warning[1:]}." for warning in warnings(result)]
    return [*said, FORGETS]


def times(delta: float) -> str:
    """A difference of losses as a ratio of perplexities."""
    return f"{math.exp(delta):.2f} times" if delta < 5 else f"{math.exp(delta):,.0f} times"


def signed(delta: float) -> str:
    """Nats with their sign, and a digit more where they are few."""
    return f"{delta:+.{3 if abs(delta) >= 0.1 else 4}f}".replace("-", "−")


def size(count: float) -> str:
    """Bytes."""
    unit, scale = next(
        ((unit, scale) for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)) if count >= scale),
        ("B", 1),
    )
    held = count / scale
    return f"{held:.0f}\u00a0{unit}" if held >= 100 or scale == 1 else f"{held:.3g}\u00a0{unit}"


def record(document: Document) -> Comparison:
    """The document as a record without its losses, for what reads the numbers only."""
    header, lines = checked(document, Path("results.json"))
    arms = [ArmResult(**line) for line in lines]
    return Comparison(**header, arms=arms, positions=np.empty(0, np.int64), losses={})


def _departs(arm: Arm) -> int:
    return int(arm["departs"])


def _tally(arms: Sequence[Arm]) -> dict[str, int]:
    counted = Counter(str(arm["verdict"]) for arm in arms)
    return {verdict: counted[verdict] for verdict in sorted(counted, key=_place)}


def _place(verdict: str) -> int:
    return _ORDER.index(verdict) if verdict in _ORDER else len(_ORDER)


def _told(tally: dict[str, int]) -> str:
    return ", ".join(f"{many} {verdict}" for verdict, many in tally.items())


def _count(many: int, thing: str) -> str:
    return f"{many:,} {thing}{'' if many == 1 else 's'}"
