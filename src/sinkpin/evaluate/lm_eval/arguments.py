"""What `--model_args` may say: which cache, how it is fed, and what of lm-eval's own model `hf` is asked for beside it.

All of it is read before there is a model to load. Not here: what is done with it (`model`).
"""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from sinkpin.card import Card
from sinkpin.errors import BudgetError, InputError, PolicyError
from sinkpin.evaluate.arms import Arm
from sinkpin.policies import parse, resolve
from sinkpin.policies.base import Kind

CHUNK = 16
"""Tokens a forward for policies that choose after each one; what `compare` takes, too."""

_OWN = ("policy", "budget", "sinks", "frame", "pins", "chunk")
_ONE_DEVICE = "a bounded cache was not tried on a model in parts; leave it out"
_NOT_TAKEN = {
    "backend": "only a decoder-only model has a cache to bound; leave it out",
    "logits_cache": "requests with one context always share its cache; leave it out",
    "mixed_precision_dtype": "a cache is built for the model's own precision; say dtype instead",
    "parallelize": _ONE_DEVICE,
    "max_memory_per_gpu": _ONE_DEVICE,
    "max_cpu_memory": _ONE_DEVICE,
    "offload_folder": _ONE_DEVICE,
    "tp_plan": _ONE_DEVICE,
}
_OF_MODEL = ("attn_implementation",)
"""Of what `hf` hands on to `from_pretrained` unseen, the one name that is taken: a misspelt one would be lost there."""


@dataclass(frozen=True)
class Settings:
    """Which cache each context gets. `kind` is the policy's; `pins` is the sink card's file as written, `card` what stands in
    it."""

    arm: Arm
    kind: Kind
    chunk: int = CHUNK
    pins: str | None = None
    card: Card | None = None


def read(given: Mapping[str, Any], harness: Collection[str]) -> tuple[Settings, dict[str, Any]]:
    """Our settings, and the rest for `hf`, whose own arguments are `harness`.

    The policy's options stand beside it (`policy=snapkv,kernel=5`). Raises `SinkpinError`, in one line, for an argument that
    nobody knows, one that cannot be had with a bounded cache, and a value that cannot be right for any model.
    """
    own = {name: given[name] for name in _OWN if name in given}
    policy, options = parse(str(own.get("policy", "window")))
    made = resolve(policy, options)
    of_policy: list[str] = [field.name for field in fields(made) if field.init] if is_dataclass(made) else []
    theirs = [name for name in harness if name not in _NOT_TAKEN]
    rest: dict[str, Any] = {}
    for name, value in given.items():
        if name in own:
            continue
        if name in of_policy or (name.startswith("base.") and "base" in of_policy):
            options[name] = value
        elif name in _NOT_TAKEN:
            raise InputError(f"argument {name}={value!r} of lm-eval's hf: {_NOT_TAKEN[name]}")
        elif name in theirs or name in _OF_MODEL:
            rest[name] = value
        else:
            raise InputError(_unknown(name, policy, of_policy, [*theirs, *_OF_MODEL]))
    _check_one_row(rest.get("batch_size", 1))
    made = resolve(policy, options)
    sinks = own.get("sinks", 4) if made.bounded else 0
    arm = Arm(policy, own.get("budget"), sinks, own.get("frame"), options)
    if arm.sinks < made.min_sinks:
        raise PolicyError(f"sinks={arm.sinks} with policy {policy!r}, which pins at least {made.min_sinks}")
    if arm.frame not in (None, "slots", "original"):
        raise PolicyError(f"frame={arm.frame!r}: it is 'slots' (ranks in the cache) or 'original' (indices)")
    chunk = own.get("chunk", CHUNK)
    if type(chunk) is not int or chunk < 1:
        raise InputError(f"chunk={chunk!r}: a forward takes a whole number of tokens, at least one")
    pins = own.get("pins")
    if pins is not None and arm.policy == "full":
        raise BudgetError(f"pins={pins!r} with policy 'full', which evicts nothing: leave one of them out")
    return Settings(arm, made.kind, chunk, pins, None if pins is None else Card.read(str(pins))), rest


def _check_one_row(batch_size: object) -> None:
    if str(batch_size) != "1":
        raise InputError(
            f"batch_size={batch_size!r}: contexts are fed one at a time, since a share, and a choice at the prompt's end, are "
            "each context's own; give 1 or leave it out"
        )


def _unknown(name: str, policy: str, of_policy: Collection[str], theirs: Collection[str]) -> str:
    near = difflib.get_close_matches(name, [*_OWN, *of_policy, *theirs], n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    options = f"; options of {policy}: {', '.join(of_policy)}" if of_policy else ""
    return (
        f"no argument is called {name!r}: {meant}sinkpin's are {', '.join(_OWN)}{options}; of lm-eval's hf: "
        f"{', '.join(theirs)}"
    )
