"""What the numbers say, in a sentence, and what they warn of.

Two questions are kept apart: what pins are worth (arms that differ by their pins only) and which policy is lowest at a
budget, pins given. Not here: a verdict. No interval stands behind these numbers, so the sentence states ratios that
were measured, on the text they were measured on, and calls no difference below `SAME` a difference.
"""

from collections.abc import Sequence
from statistics import median

from sinkpin.evaluate.pairs import pairs, usual
from sinkpin.evaluate.record import ArmResult, Comparison
from sinkpin.evaluate.table import dropped_first, lost_first

# Perplexities closer than this are called the same. A few thousand scored tokens rarely resolve less, and whether a
# given run does is a question for an interval, not for this sentence.
SAME = 0.05

_FEW = 2  # policies that can still be told one by one
_LEVELS = 2  # budgets at which the lowest policy is named
_NAMED = 8  # arms that a warning names

Pair = tuple[ArmResult, ArmResult]


def sentence(result: Comparison) -> str:
    """What this run says about pins and policies."""
    full, *others = result.arms
    where = f"on {_count(result.scored_tokens, 'token')} of one text"
    if not others:
        said = f"Only the full cache was run, with perplexity {_short(full.ppl)} {where}; there is nothing to compare."
    elif not (found := pairs(others)):
        said = f"{_unpaired_lowest(others, full)}, {where}; {_unpaired(others)}."
    elif len({without.family for without, _ in found}) > _FEW:
        said = f"{_pins_over_all(found)}. {_lowest(others, full)}, {where}."
    else:
        told, untold = _pins_of_one(found, others, full)
        said = f"{told}, {where}{untold}."
    return said + _extrapolation(result)


def warnings(result: Comparison) -> list[str]:
    """One line where an arm that does not pin the first tokens dropped them."""
    arms = [arm for arm in result.arms if dropped_first(arm)]
    if not arms:
        return []
    left = [f"{100 * arm.sink_kept:.0f}%" for arm in arms[:_NAMED]]
    named = [f"{arm.name} ({share})" for arm, share in zip(arms, left, strict=False)]
    named[0] = f"{arms[0].name} ({left[0]} of them left)"
    more = f" and {len(arms) - _NAMED} more, marked ! in the table" if len(arms) > _NAMED else ""
    return [
        f"the first tokens, often the attention sinks, were not pinned and were dropped by {', '.join(named)}{more}"
    ]


def _pins_of_one(found: Sequence[Pair], others: Sequence[ArmResult], full: ArmResult) -> tuple[str, str]:
    """At the smallest budget, of the window policy if it is there: without pins and with them. The other policies at
    this budget follow, those of which nothing is said by name."""
    pair = min(found, key=lambda pair: (pair[0].budget_tokens or 0, pair[0].family != "window"))
    without, pinned = pair
    at, family, tokens = _at(pair), without.family, _pinned(pinned)
    if _same(without, pinned):
        itself = ", which held on to the first tokens by itself," if not lost_first(without) else ""
        said = (
            f"{at}, pinning {tokens} makes no difference to {family}{itself} that this run can show: "
            f"{_times(without, full)} without pins and {_ratio(pinned, full)} times ({_short(pinned.ppl)}) with them"
        )
    else:
        loses = "without pins loses the first tokens and" if lost_first(without) else "without pins"
        change = "brings it down to" if pinned.ppl < without.ppl else "makes it worse,"
        said = (
            f"{at}, {family} {loses} has {_times(without, full)}; pinning {tokens} {change} "
            f"{_ratio(pinned, full)} times ({_short(pinned.ppl)})"
        )
    here = [arm for arm in others if arm.level == without.level]
    told = [family]
    for one, other in found:
        if one in here and one.setting != without.setting and _pinned(other) == tokens:
            said += _beside(one, other, full)
            told.append(one.family)
    best = min(here, key=lambda arm: arm.ppl)
    if not any(_same(best, arm) for arm in pair) and best not in pair:
        said += f", and {best.name} is lowest at this budget with {_ratio(best, full)} times"
        told.append(best.family)
    untold = [family for family in dict.fromkeys(arm.family for arm in here) if family not in told]
    return said, f"; of {_listed(untold)} only the table tells" if untold else ""


def _beside(without: ArmResult, pinned: ArmResult, full: ArmResult) -> str:
    """What pins do to another policy, behind what they do to the first."""
    before, after = _ratio(without, full), _ratio(pinned, full)
    if _same(without, pinned):
        return f", and makes no difference to {without.family} ({before} and {after} times)"
    return f", and takes {without.family} from {before} to {after} times"


def _unpaired_lowest(others: Sequence[ArmResult], full: ArmResult) -> str:
    """The lowest arm at the smallest budget, where no two arms differ by their pins only."""
    smallest = min(others, key=lambda arm: arm.budget_tokens or 0)
    ranked = sorted((arm for arm in others if arm.level == smallest.level), key=lambda arm: arm.ppl)
    arm, *more = ranked
    alike = bool(more) and _same(arm, more[0])
    lowest = f"is lowest of {len(ranked)} arms and " if more and not alike else ""
    close = f", from which this run cannot tell the next of {len(ranked)} arms" if alike else ""
    return f"{_at([arm])}, {arm.name} {lowest}has {_times(arm, full)}{close}"


def _pins_over_all(found: Sequence[Pair]) -> str:
    """What pins do to perplexity over all pairs: the range, where its ends lie, and the median."""
    ranked = sorted(found, key=lambda pair: pair[1].ppl / pair[0].ppl)
    factors = [pinned.ppl / without.ppl for without, pinned in ranked]
    (least, _), (most, _) = ranked[0], ranked[-1]
    tokens = {_pinned(pinned) for _, pinned in found}
    return (
        f"Pinning {tokens.pop() if len(tokens) == 1 else 'tokens'} multiplies perplexity by {_short(factors[0])} "
        f"({least.name}) to {_short(factors[-1])} ({most.name}), with a median of {_short(median(factors))} over "
        f"{_count(len(found), 'pair')} of arms that differ by pins only"
    )


def _lowest(others: Sequence[ArmResult], full: ArmResult) -> str:
    """As many pins given, at each of the smallest budgets: the lowest policy, beside the window."""
    shown = max(others, key=usual)
    pinned = [arm for arm in others if _pinned(arm) == _pinned(shown)]
    smallest = sorted(pinned, key=lambda arm: arm.budget_tokens or 0)
    levels = list(dict.fromkeys(arm.level for arm in smallest))[:_LEVELS]
    said: list[str] = []
    for level in levels:
        arms = [arm for arm in pinned if arm.level == level]
        best = min(arms, key=lambda arm: arm.ppl)
        window = min((arm for arm in arms if arm.family == "window"), key=lambda arm: arm.ppl, default=None)
        text = f"{_at(arms)} {best.name} is lowest with {_ratio(best, full)} times"
        if not said:
            text += " the perplexity of the full cache"
        if window is not None and window is not best:
            close = ", which this run cannot tell apart" if _same(best, window) else ""
            text += f", {window.name} has {_ratio(window, full)}{close}"
        said.append(text)
    return f"With {_pinned(shown)} pinned, {'; '.join(_lowered(text) for text in said)}"


def _extrapolation(result: Comparison) -> str:
    full = result.arms[0]
    past = [arm for arm in result.arms if result.extrapolates(arm)]
    if not past:
        return ""
    trained = f"the {result.trained_length:,} positions this model was trained on"
    if full in past:
        return (
            f" The full cache reads past {trained}: that is extrapolation, and a ratio to it says what a bounded cache "
            "spares the model, not what eviction costs."
        )
    names = ", ".join(arm.name for arm in past[:_NAMED]) + (", …" if len(past) > _NAMED else "")
    return f" Past {trained}, {names} {'extrapolates' if len(past) == 1 else 'extrapolate'}."


def _unpaired(arms: Sequence[ArmResult]) -> str:
    if all(arm.pinned for arm in arms):
        return "no arm ran without pins, so this says nothing about what the pins are worth"
    if not any(arm.pinned for arm in arms):
        return "no arm ran with pins, so this says nothing about what pins would be worth"
    return "no policy ran both with and without pins at one budget, so this says nothing about what the pins are worth"


def _same(one: ArmResult, other: ArmResult) -> bool:
    return max(one.ppl, other.ppl) < (1 + SAME) * min(one.ppl, other.ppl)


def _pinned(arm: ArmResult) -> str:
    if arm.pins:
        return _count(arm.pinned_tokens, "token")
    return f"the first {arm.sinks} tokens" if arm.sinks > 1 else "the first token"


def _at(arms: Sequence[ArmResult]) -> str:
    """Where arms of one budget stand: in entries, and as it was written where that was something else."""
    held = sorted({arm.budget_tokens for arm in arms if arm.budget_tokens is not None})
    if not held:
        return "With the whole cache"
    entries = f"{held[0]:,}" if len(held) == 1 else f"{held[0]:,} to {held[-1]:,}"
    entries += " entry" if held == [1] else " entries"
    level = arms[0].level
    return f"At {entries}" if level.isdecimal() else f"At {level} ({entries})"


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _lowered(text: str) -> str:
    return text[0].lower() + text[1:]


def _times(arm: ArmResult, full: ArmResult) -> str:
    return f"{_ratio(arm, full)} times the perplexity of the full cache ({_short(arm.ppl)} against {_short(full.ppl)})"


def _ratio(arm: ArmResult, full: ArmResult) -> str:
    return _short(arm.ppl / full.ppl)


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _short(number: float) -> str:
    """Two or three significant digits, and no exponent: 0.0041, 0.98, 1.41, 22.0, 230, 1,234."""
    if number >= 100:
        return f"{number:,.0f}"
    if number < 0.1:
        return f"{number:.5f}".rstrip("0") if number < 1e-4 else f"{number:.2g}"
    return f"{number:.{2 if number < 10 else 1}f}"
