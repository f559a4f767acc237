"""What a reader can do now: read more text, take a cache and certify it, pin, probe; and the line that builds the cache.

Plain text, in which `…` marks code (`page.markup.prose`). Not here: what the run found (`words`).
"""

from collections.abc import Sequence

from sinkpin.evaluate.documents import Document
from sinkpin.evaluate.page.words import BLOCKS, Arm, recommended
from sinkpin.page.words import number

BLOCK = 512  # tokens

_MOST = 50  # times as much text: beyond, the number says nothing to a reader


def advice(document: Document, probes: Sequence[Document]) -> list[str]:
    """What to do now, first things first."""
    others = document["arms"][1:]
    first = document["tokens"] - document["scored_tokens"]
    needed = first + BLOCKS * BLOCK
    said = []
    judged = [arm for arm in others if arm.get("verdict")]
    if others and not any(arm.get("ci95") for arm in others):
        said.append(
            "Read differences of a few percent as chance: this run has no intervals. `sinkpin plan MODEL --text FILE "
            "--max-loss 1%` chooses a cache on one part of a text, and promises with an upper bound on another."
        )
    elif others and not judged:
        if document["scored_tokens"] < BLOCKS * BLOCK:
            said.append(
                f"Read more text: `--tokens {needed}` or more gives the {BLOCKS} blocks of {BLOCK} tokens that a verdict needs; "
                f"this run scored {document['scored_tokens']:,} tokens. A text that is too short needs a longer `--text`."
            )
        else:
            said.append(
                "Run `sinkpin compare` again: the text is long enough for a verdict, and this file holds none."
            )
    elif best := recommended(document):
        said.append(f"Take {best['name']} where the text is like this one: the line below builds that cache.")
        said.append(
            "Certify it on a text it has not seen before you rely on it: `sinkpin plan MODEL --text FILE --max-loss 1%` "
            "chooses on one part of a text and promises on another."
        )
    elif judged and all(arm["verdict"] == "worse" for arm in judged):
        said.append(
            "Give the cache more bytes, or another policy: `--budget` takes several sizes, `sinkpin policies` lists the policies."
        )
    if more := _more_text(document, judged):
        said.append(more)
    if any(not arm["sinks"] and arm["sink_kept"] < 1 for arm in others) and not any(
        arm["sinks"] for arm in others
    ):
        said.append(
            "Run the same with pins, `--sinks 0,4`: no arm here pinned the first tokens, which often are attention sinks."
        )
    if others and not probes:
        said.append(
            "Ask for what perplexity does not see: `sinkpin probe needle` and `sinkpin probe names` test what the cache forgets."
        )
    return said


def code(document: Document) -> str | None:
    """The Python line that builds the recommended cache."""
    arm = recommended(document)
    if arm is None:
        return None
    given: dict[str, object] = {
        "budget": arm["budget_tokens"],
        "policy": arm["policy"],
        "sinks": arm["sinks"],
    }
    if arm.get("pins"):
        given["pins"] = [tuple(span) for span in arm["pins"]]
    if arm.get("frame"):
        given["frame"] = arm["frame"]
    said = ", ".join(f"{name}={value!r}" for name, value in (given | arm["options"]).items())
    return f"cache = sinkpin.BoundedCache(model, {said})"


def _more_text(document: Document, judged: Sequence[Arm]) -> str:
    """How much text would settle the open verdicts: what can be seen shrinks with the root of its length."""
    margin = document.get("margin")
    open_ = [arm for arm in judged if arm["verdict"] == "inconclusive" and arm.get("detectable")]
    if not open_ or not margin:
        return ""
    least = max(open_, key=lambda arm: float(arm["detectable"]))
    factor = (least["detectable"] / margin) ** 2
    if factor <= 1:
        return ""
    amount = f"about {factor:.1f} times" if factor <= _MOST else f"more than {_MOST} times"
    which = "the inconclusive arm" if len(open_) == 1 else f"all {len(open_)} inconclusive arms"
    return (
        f"To settle {which}, read {amount} as much text (`--tokens`): this run could have seen effects from "
        f"{number(least['detectable'])} nats, and the margin is {number(margin)}."
    )
