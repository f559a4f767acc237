"""The result as a table for the terminal, and in one sentence.

Reads well at 80 columns, on a terminal and in a pipe: numbers line up and are never cut, a long arm name
wraps, and what colour says is also said by a mark. Not here: a verdict. No interval stands behind these
numbers, so the sentence states ratios that were measured, on the text they were measured on, and calls no
difference below `SAME` a difference.
"""

from rich import box
from rich.table import Table
from rich.text import Text

from sinkpin.evaluate.record import ArmResult, Comparison

# Perplexities closer than this are called the same. A few thousand scored tokens rarely resolve less, and whether a
# given run does is a question for an interval, not for this sentence.
SAME = 0.05

# An arm without pins that holds fewer than this share of the first four tokens at the end has lost its sinks.
LOST = 0.5

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def table(result: Comparison) -> Table:
    """One line per arm, in the order of the record."""
    full = result.arms[0]
    unit, scale = _unit(min(arm.kv_bytes_steady for arm in result.arms))
    ppl = _decimals(max(arm.ppl for arm in result.arms))
    ratio = _decimals(max(arm.ppl for arm in result.arms) / full.ppl)
    lines = Table(
        title=f"{result.model}, {result.scored_tokens:,} of {result.tokens:,} tokens scored, chunk {result.chunk}",
        title_style="bold",
        title_justify="left",
        caption=_caption(result),
        caption_style="",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=0,
    )
    lines.add_column("arm", overflow="fold", min_width=12)
    for header in (
        "budget\ntokens",
        f"KV\n{unit}",
        "pins",
        "ppl",
        "×\nfull",
        "ΔNLL\nnats",
        "top-1\n%",
        "sinks\n%",
        "evicted",
        "tok/s",
    ):
        lines.add_column(header, justify="right", no_wrap=True)
    for arm in result.arms:
        lost = lost_sinks(arm)
        lines.add_row(
            Text(f"{arm.name} !" if lost else arm.name),
            "all" if arm.budget_tokens is None else str(arm.budget_tokens),
            f"{arm.kv_bytes_steady / scale:.1f}",
            "-" if arm.budget_tokens is None else str(arm.sinks),
            f"{arm.ppl:.{ppl}f}",
            f"{arm.ppl / full.ppl:.{ratio}f}",
            "-" if arm is full else f"{arm.delta_nll:+.3f}",
            "-" if arm is full or arm.top1_agreement is None else f"{100 * arm.top1_agreement:.1f}",
            f"{100 * arm.sink_kept:.0f}",
            f"{arm.evicted:,.0f}",
            f"{arm.tokens_per_s:,.0f}",
            style="red" if lost else None,
        )
    return lines


def sentence(result: Comparison) -> str:
    """What the numbers say about pins, at the smallest budget that was run both with and without them."""
    full, *others = result.arms
    where = f"on {result.scored_tokens:,} tokens of one text"
    if not others:
        return f"Only the full cache was run, with perplexity {_short(full.ppl)} {where}; there is nothing to compare."

    pair = _pair(others)
    if pair is None:
        arm = min(others, key=lambda arm: (arm.budget_tokens or 0, arm.ppl))
        return f"{_at(arm)}, {arm.name} has {_times(arm, full, both=True)}, {where}; {_unpaired(others)}."

    without, pinned = pair
    family, tokens = (
        without.family,
        f"the first {pinned.sinks} tokens" if pinned.sinks > 1 else "the first token",
    )
    if _same(without, pinned):
        itself = ", which held on to the first tokens by itself," if not lost_sinks(without) else ""
        text = (
            f"{_at(without)}, pinning {tokens} makes no difference to {family}{itself} that this run can show: "
            f"{_times(without, full, both=True)} without pins and {_short(pinned.ppl / full.ppl)} times "
            f"({_short(pinned.ppl)}) with them"
        )
    else:
        without_pins = "without pins loses the first tokens and" if lost_sinks(without) else "without pins"
        then = "pinning them" if pinned.sinks >= 4 and lost_sinks(without) else f"pinning {tokens}"
        change = "brings it down to" if pinned.ppl < without.ppl else "makes it worse,"
        text = (
            f"{_at(without)}, {family} {without_pins} has {_times(without, full, both=True)}; {then} {change} "
            f"{_short(pinned.ppl / full.ppl)} times ({_short(pinned.ppl)})"
        )

    best = min((arm for arm in others if arm.budget_tokens == without.budget_tokens), key=lambda arm: arm.ppl)
    if best not in pair and not any(_same(best, arm) for arm in pair):
        text += f", and {best.name} is lowest at this budget with {_short(best.ppl / full.ppl)} times"
    return f"{text}, {where}."


def lost_sinks(arm: ArmResult) -> bool:
    """Whether this arm ran without pins and ended without its first tokens."""
    return arm.budget_tokens is not None and not arm.pinned and arm.sink_kept < LOST


def _pair(arms: list[ArmResult]) -> tuple[ArmResult, ArmResult] | None:
    """Two arms that differ by their pins only, without and with: the smallest budget, the window policy if it
    is there, then the order they were asked for.
    """
    pairs = [
        (without, pinned)
        for without in arms
        for pinned in arms
        if not without.pinned
        and pinned.sinks > 0
        and without.family == pinned.family
        and without.frame == pinned.frame
        and without.budget_tokens == pinned.budget_tokens
    ]
    return min(pairs, key=lambda pair: (pair[0].budget_tokens or 0, pair[0].family != "window"), default=None)


def _unpaired(arms: list[ArmResult]) -> str:
    if all(arm.pinned for arm in arms):
        return "no arm ran without pins, so this says nothing about what the pins are worth"
    if not any(arm.pinned for arm in arms):
        return "no arm ran with pins, so this says nothing about what pins would be worth"
    return "no policy ran both with and without pins at one budget, so this says nothing about what the pins are worth"


def _same(one: ArmResult, other: ArmResult) -> bool:
    return max(one.ppl, other.ppl) < (1 + SAME) * min(one.ppl, other.ppl)


def _at(arm: ArmResult) -> str:
    return f"At {arm.budget_tokens:,} entries" if arm.budget_tokens is not None else "With the whole cache"


def _times(arm: ArmResult, full: ArmResult, *, both: bool) -> str:
    against = f" ({_short(arm.ppl)} against {_short(full.ppl)})" if both else ""
    return f"{_short(arm.ppl / full.ppl)} times the perplexity of the full cache{against}"


def _short(number: float) -> str:
    """Three significant digits, and no exponent: 0.978, 1.41, 22.0, 230, 1,234."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.{2 if number < 10 else 1}f}"


def _decimals(largest: float) -> int:
    """As many decimals as leave the widest number of a column at six characters or little more."""
    return 2 if largest < 1000 else 1


def _unit(smallest: int) -> tuple[str, int]:
    return next(((unit, scale) for unit, scale in _UNITS if smallest >= scale), _UNITS[-1])


def _caption(result: Comparison) -> str:
    lines = [
        "top-1: same most likely next token as full. sinks: of the first 4 tokens, held",
        "at the end. evicted: entries per layer and KV head. KV: bytes held at the end.",
    ]
    if any(lost_sinks(arm) for arm in result.arms):
        lines.append(f"! no pins, and fewer than {100 * LOST:.0f} % of the first tokens held at the end")
    return "\n".join(lines)
