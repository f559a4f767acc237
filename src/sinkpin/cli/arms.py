"""Which arms `--policy`, `--budget` and `--sinks` ask for, and what of it is not run.

Every mistake is told here, before there is anything to wait for. Not here: the product itself (`evaluate.arms`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from sinkpin.errors import InputError

if TYPE_CHECKING:
    from sinkpin.evaluate.arms import Arm

BUDGETS = "64,256"
POLICIES = ("window", "random")
SINKS = "0,4"


def asked_for(
    policies: Sequence[str],
    budgets: str,
    sinks: str,
    frame: Literal["slots", "original"] | None,
    prompt: int | None,
) -> tuple["list[Arm]", list[str]]:
    """The arms, the full cache first, and notes on what was asked for and is left out."""
    from sinkpin.evaluate.arms import product
    from sinkpin.policies import resolve

    for written in policies:
        _check_one(written)
    notes: list[str] = []
    sizes = [int(item) if item.isdecimal() else item for item in _items("--budget", budgets, BUDGETS, notes)]
    counts = [_sinks(item) for item in _items("--sinks", sinks, SINKS, notes)]
    arms = product(policies, sizes, counts, frame)
    for arm in arms:
        policy = resolve(arm.policy, arm.options)  # complains of options, too
        if policy.kind == "prompt" and prompt is None:
            raise InputError(
                f"{arm.name} chooses once, when the prompt ends, and this text has no prompt: say how many of its first "
                "tokens are one, --prompt N"
            )
    return arms, notes + _left_out(policies, sizes, counts, arms)


def _check_one(written: str) -> None:
    """Raise `InputError` for `h2o,tova`: a comma stands between a policy's options."""
    from sinkpin.policies import names

    first, *more = (piece.strip() for piece in written.split(","))
    if more and (":" not in first or any(piece.partition(":")[0] in names() for piece in more)):
        apart = [first]
        for piece in more:
            if "=" in piece.partition(":")[0]:
                apart[-1] += f",{piece}"
            else:
                apart.append(piece)
        several = " ".join(f"--policy {one}" for one in apart)
        raise InputError(f"--policy {written!r}: one policy for each --policy, repeat it: {several}")


def _items(option: str, written: str, example: str, notes: list[str]) -> list[str]:
    items = [item.strip() for item in written.split(",")]
    if not all(items):
        raise InputError(f"{option} {written!r} has an empty item: write a list like {example}")
    once = list(dict.fromkeys(items))
    notes += [f"{option} {item} was given twice and taken once" for item in once if items.count(item) > 1]
    return once


def _sinks(item: str) -> int:
    if not item.isdecimal():
        raise InputError(
            f"--sinks {item!r} is no number of tokens: write whole numbers from 0 up, like {SINKS}"
        )
    return int(item)


def _left_out(
    policies: Sequence[str], budgets: Sequence[int | str], sinks: Sequence[int], arms: "Sequence[Arm]"
) -> list[str]:
    """What of the product that was asked for is not run, and why."""
    called = [written.strip().partition(":")[0] for written in policies]
    asked = len(budgets) * len(sinks) * sum(name != "full" for name in called)
    notes = []
    if "streaming" in called and 0 in sinks:
        notes.append("streaming with 0 sinks is left out: it pins at least one, and without it is window")
        asked -= len(budgets) * called.count("streaming")
    if (same := asked - (len(arms) - 1)) > 0:
        reason = " (streaming is window with sinks)" if {"window", "streaming"} <= set(called) else ""
        notes.append(f"{same} {'arm was' if same == 1 else 'arms were'} asked for twice and run once{reason}")
    return notes
