"""What stays of a pool of entries: pins united with the policy's choice, explicitly, per row, padding discounted.

A policy is asked only about candidates, in groups of rows that have equally many; position policies are not asked at
all, since their choice follows from indices. After a prompt policy has chosen, its choice is frozen and the newest
entries slide.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sinkpin.cache.ledger import Rule
from sinkpin.errors import PolicyError
from sinkpin.policies.base import Ranked, View, described, scored
from sinkpin.policies.pins import met, pinned

Fields = Callable[[Tensor, Tensor, int], dict[str, Any]]
"""Evidence of (batch rows, candidate slots, room), as fields of a `View`."""


@dataclass(frozen=True)
class Moment:
    """When a choice is made: the pins `spans [batch, s, 2]`, whether any row is padded, whether a prompt is still
    coming in, and, once it has ended, its real tokens `[batch]`."""

    spans: Tensor
    padded: bool
    in_prompt: bool = False
    prompt: Tensor | None = None


def choose(rule: Rule, pool: Tensor, new: int, moment: Moment, layer: int, fields: Fields) -> Tensor | None:
    """What stays of `pool [batch, heads, entries]`, of which the last `new` have just come: int64 slots `[batch, heads,
    kept]` ascending, empty ones (-1) first; None where everything does. `kept` is the budget, or that of the fullest
    head where heads share one."""
    if rule.budget is None or pool.shape[-1] <= rule.budget:
        return None
    spans = moment.spans if rule.pins else moment.spans[:, :0]
    if rule.policy.kind == "position":
        return _most_recent(rule.budget, pool, spans)
    if rule.policy.kind == "prompt":
        if moment.in_prompt:
            return None
        if moment.prompt is not None:
            return _after_prompt(rule, pool, spans, moment.prompt, new)
    if rule.across_heads:
        return _shared_by_heads(rule, pool, spans, layer, fields)
    return _of_policy(rule, pool, spans, moment.padded, layer, fields)


def _most_recent(budget: int, pool: Tensor, spans: Tensor) -> Tensor:
    """Pins met so far, and the most recent of the rest."""
    is_pin = pinned(spans, pool)
    loose = (pool >= 0) & ~is_pin
    return _slots(is_pin | (loose & (_newer(loose) <= budget - is_pin.sum(-1, keepdim=True))), budget)


def _after_prompt(rule: Rule, pool: Tensor, spans: Tensor, prompt: Tensor, new: int) -> Tensor:
    """Pins, what was chosen of the prompt but for its last window, and the most recent of the rest.

    A pin that is met later takes the place of the oldest entry chosen, so that the window's slots stay. Where heads
    share a budget, each goes on with the number of entries that it was given.
    """
    assert rule.budget is not None
    prompt = prompt.to(pool.device)
    pins_of_prompt = met(spans, prompt - 1)
    windows = [rule.policy.window(room) for room in (rule.budget - pins_of_prompt).tolist()]
    window = torch.tensor(windows, device=pool.device)[:, None, None]
    is_pin = pinned(spans, pool)
    loose = (pool >= 0) & ~is_pin
    ordinal = pool + 1 - met(spans, pool)  # how many unpinned entries the text has up to here
    chosen = loose & (ordinal <= (prompt - pins_of_prompt)[:, None, None] - window)
    total: Tensor | int = rule.budget
    if rule.across_heads:
        old = (pool[..., : pool.shape[-1] - new] >= 0).sum(-1, keepdim=True)
        # Heads that never had to share so far may still fill up to the budget.
        total = torch.where((old > rule.budget).any(1, keepdim=True), old, old.clamp(min=rule.budget))
        total = _levelled(total, is_pin.sum(-1, keepdim=True) + 1) if rule.across_heads else total
    room = total - is_pin.sum(-1, keepdim=True)
    chosen = chosen & (_newer(chosen) <= room - window)
    loose = loose & ~chosen
    loose = loose & (_newer(loose) <= room - chosen.sum(-1, keepdim=True))
    return _slots(is_pin | chosen | loose, None if rule.across_heads else rule.budget)


def _levelled(total: Tensor, least: Tensor) -> Tensor:
    """`total [batch, heads, 1]` with at least `least` everywhere: pins that are met after a layer's heads were given their
    parts need room in each. The fullest head gives, entry by entry."""
    total = total.clone()
    for row, floor in zip(total[..., 0], least[..., 0], strict=True):
        while (row < floor).any():
            row[(row - floor).argmin()] += 1
            row[(row - floor).argmax()] -= 1
    return total


def _newer(mask: Tensor) -> Tensor:
    """Of each entry, how many of those in `mask` are at least as new."""
    return mask.flip(-1).cumsum(-1).flip(-1)


def _shared_by_heads(rule: Rule, pool: Tensor, spans: Tensor, layer: int, fields: Fields) -> Tensor | None:
    """Pins, and what the policy keeps of the rest when all heads of a layer share one budget. Row by row, since rows
    hold different numbers too."""
    assert rule.budget is not None
    heads = pool.shape[1]
    is_pin = pinned(spans, pool)
    candidate = (pool >= 0) & ~is_pin
    kept = candidate | is_pin
    for row in range(pool.shape[0]):
        room = rule.budget - int(is_pin[row, 0].sum())
        if int(candidate[row].sum()) > heads * room:
            rows = torch.tensor([row], device=pool.device)
            slots = _last(candidate[rows], int(candidate[row].sum(-1).max()))
            origins = pool[rows].gather(-1, slots).masked_fill(~candidate[rows].gather(-1, slots), -1)
            view = View(layer=layer, origins=origins, **fields(rows, slots, room))
            share = rule.policy.share(view, room)  # type: ignore[attr-defined]
            if not isinstance(share, Tensor) or share.shape != origins.shape or share.dtype != torch.bool:
                raise PolicyError(
                    f"policy {rule.policy!r} returned {described(share)} from share(): it must be bool "
                    f"{list(origins.shape)}, whether each candidate stays"
                )
            if int(share.sum()) != heads * room or bool((share & (origins < 0)).any()):
                raise PolicyError(
                    f"policy {rule.policy!r} shared out {int(share.sum())} entries: it must be {heads * room}, "
                    f"{room} for each of {heads} heads on average"
                )
            kept[row] = is_pin[row].scatter(-1, slots[0], is_pin[row].gather(-1, slots[0]) | share[0])
    return _slots(kept, None)


def _slots(kept: Tensor, width: int | None) -> Tensor:
    """The slots where `kept [batch, heads, entries]` holds, ascending, empty ones (-1) first: `width` of them, or as
    many as the fullest head keeps."""
    slots = _last(kept, int(kept.sum(-1).max()) if width is None else width)
    return torch.where(kept.gather(-1, slots), slots, -1)


def _last(mask: Tensor, count: int) -> Tensor:
    """`count` slots a head that end with those where `mask` holds, ascending; what comes before does not hold."""
    return torch.argsort(mask.to(torch.uint8), dim=-1, stable=True)[..., mask.shape[-1] - count :]


def _of_policy(rule: Rule, pool: Tensor, spans: Tensor, padded: bool, layer: int, fields: Fields) -> Tensor:
    """Pins, and what the policy keeps of the rest. Rows are put to it in groups with equally many candidates."""
    assert rule.budget is not None
    is_pin = pinned(spans, pool)
    candidate = (pool >= 0) & ~is_pin
    if not padded and bool((spans == spans[:1]).all()):
        groups = [torch.arange(pool.shape[0], device=pool.device)]
    else:
        # Rows go together that agree in what is asked of the policy: candidates, room, and how far their text is.
        counts = torch.stack((candidate[:, 0].sum(-1), is_pin[:, 0].sum(-1), pool[:, 0].amax(-1)), dim=-1)
        _, member = counts.unique(dim=0, return_inverse=True)
        groups = [(member == g).nonzero()[:, 0] for g in range(int(member.max()) + 1)]
    out = torch.full((*pool.shape[:2], rule.budget), -1, dtype=torch.int64, device=pool.device)
    for rows in groups:
        n_candidates, n_pins = int(candidate[rows[0], 0].sum()), int(is_pin[rows[0], 0].sum())
        slots = _first(candidate[rows], n_candidates)
        room = rule.budget - n_pins
        if n_candidates > room:
            view = View(layer=layer, origins=pool[rows].gather(-1, slots), **fields(rows, slots, room))
            slots = slots.gather(-1, _checked(rule, view, room))
        both = torch.cat((_first(is_pin[rows], n_pins), slots), dim=-1).sort(-1).values
        out[rows, :, rule.budget - both.shape[-1] :] = both
    return out


def _first(mask: Tensor, count: int) -> Tensor:
    """The slots `[rows, heads, count]` where `mask [rows, heads, entries]` holds, ascending."""
    return torch.argsort((~mask).to(torch.uint8), dim=-1, stable=True)[..., :count]


def _checked(rule: Rule, view: View, n: int) -> Tensor:
    """The policy's answer, which must be `n` distinct candidates for each row and head."""
    chosen = rule.policy.keep(view, n)
    wanted = (*view.origins.shape[:-1], n)
    if not isinstance(chosen, Tensor) or chosen.shape != wanted or chosen.dtype != torch.int64:
        raise PolicyError(
            f"policy {rule.policy!r} returned {described(chosen)} from keep(): it must be int64 {list(wanted)}, the "
            f"indices of {n} candidates for each row and head"
        )
    ordered = chosen.sort(-1).values
    if (
        ordered[..., 0].lt(0).any()
        or ordered[..., -1].ge(view.candidates).any()
        or ordered.diff().eq(0).any()
    ):
        raise PolicyError(
            f"policy {rule.policy!r} kept an entry twice, or one that is not among the {view.candidates} candidates: "
            f"keep() must return {n} distinct indices for each row and head"
        )
    return chosen


def dropped(rule: Rule, view: View) -> Tensor:
    """The one candidate that goes, int64 `[rows, kv_heads]`, where one is too many: what `keep` would leave out."""
    policy, n = rule.policy, view.candidates - 1
    if isinstance(policy, Ranked) and type(policy).keep is Ranked.keep:
        return scored(policy, view, n).argmin(-1)  # of equal ones the first, which is the oldest
    return n * (n + 1) // 2 - _checked(rule, view, n).sum(-1)
