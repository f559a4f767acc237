"""The page's own words: the headline, the findings under it, and an effect with its interval.

Everything here is plain text: whoever puts it into a page escapes it (`page.markup.text`). Not here: numbers and tokens
in words (`page.words`), the tables, and the pictures' own words (page.js).
"""

import math
from typing import Any

from sinkpin.card.advice import advice
from sinkpin.page.words import NOT_MEASURED, measured, percent, short, signed


def nats(effect: dict[str, Any]) -> str:
    """A loss with its interval."""
    low, high = effect["ci95"]
    return f"{signed(effect['delta_nll'])} [{signed(low)}, {signed(high)}]"


def _loss(effect: dict[str, Any]) -> str:
    """The same in a sentence."""
    low, high = (_short_nats(x) for x in effect["ci95"])
    return f"{_short_nats(effect['delta_nll'])} ({low} to {high})"


def _short_nats(value: float) -> str:
    if not math.isfinite(value):
        return NOT_MEASURED
    return (f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}").replace("-", "−")


def headline(document: dict[str, Any]) -> str:
    """What was found, in one line. Nothing is an answer too."""
    found = _found(document)
    if not found:
        return "No sinks found"
    top = found[0]
    return f"Token {top['index']}, “{short(top['text'], 20)}”, takes {percent(top['mass'])} of all attention"


def findings(document: dict[str, Any]) -> list[str]:
    """The sentences under the headline: how many sinks of what kind, what losing them costs, what pinning gives back."""
    found = _found(document)
    said = [_counted(document)]
    if found:
        said.append(advice(document["card"], sum(sink["kind"] == "secondary" for sink in found)))
    said += [_MEANS[kind] for kind in _kinds(found)]
    if costs := [one for one in document["ablations"] if measured(one["effect"]["delta_nll"])]:
        worst = max(costs, key=lambda one: float(one["effect"]["delta_nll"]))
        others = "as many matched tokens" if len(worst["indices"]) > 1 else "a matched token"
        said.append(
            f"Losing {worst['what']} ({worst['way']}) costs {_loss(worst['effect'])} nats per token, "
            f"losing {others} {_loss(worst['control'])}."
        )
    if given := [one for one in document["restored"] if measured(one["pinned"]["delta_nll"])]:
        best = min(given, key=lambda one: float(one["pinned"]["delta_nll"]))
        said.append(
            f"In a window of {best['budget']:,} entries, pinning the {best['what']} brings the loss from "
            f"{_loss(best['without'])} to {_loss(best['pinned'])} nats per token."
        )
    return said


def _found(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Sinks by their mass, largest first. Without those that are listed only for their place in the template."""
    found = [sink for sink in document["sinks"] if sink["outlier"]]
    return sorted(found, key=lambda sink: sink["mass"] if measured(sink["mass"]) else 0.0, reverse=True)


def _counted(document: dict[str, Any]) -> str:
    found, listed = _found(document), len(document["sinks"])
    among = len(document["tokens"]["texts"])
    if not found:
        rest = f" {listed} listed for their place in the chat template." if listed else ""
        return f"Among {among:,} tokens, none stands out by the attention it receives.{rest}"
    top, heads = found[0], document["heads"] * len(document["layers"])
    epsilon = document["settings"].get("epsilon")
    over = "ε" if epsilon is None else f"ε = {epsilon}"
    tally = {kind: sum(sink["kind"] == kind for sink in found) for kind in _kinds(found)}
    more = listed - len(found)
    rest = (
        f"; {more} more listed for {'its' if more == 1 else 'their'} place in the chat template"
        if more
        else ""
    )
    which = "it" if len(found) == 1 else f"token {top['index']}"
    return (
        f"{len(found)} sink{'s' if len(found) > 1 else ''} among {among:,} tokens "
        f"({', '.join(f'{many} {kind}' for kind, many in tally.items())}){rest}. {top['heads']:,} of {heads:,} heads pay "
        f"{which} more than {over}; it is an outlier in {len(top['layers'])} of {len(document['layers'])} layers."
    )


_MEANS = {
    "true": "True: bound to the first place. Whatever token stands there takes the mass.",
    "structural": "Structural: a marker of the chat template.",
    "secondary": "Secondary: bound neither to the first place nor to the chat template.",
}


def _kinds(sinks: list[dict[str, Any]]) -> list[str]:
    """The kinds there are, true ones first."""
    there = {sink["kind"] for sink in sinks}
    return [kind for kind in _MEANS if kind in there]
