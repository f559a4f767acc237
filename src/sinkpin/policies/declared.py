"""Whether a policy says of itself what the cache can honour: its class attributes, and the methods they call for.

A misspelt attribute would stand for its default, and another policy would run than was written; here it is an error
with the legal ones. Not here: what the methods return, which the cache checks when it asks.
"""

import difflib
import re
from collections.abc import Set
from dataclasses import fields, is_dataclass
from typing import Any, get_args

from sinkpin.errors import PolicyError
from sinkpin.policies import TABLE
from sinkpin.policies.base import Frame, Kind, Need, Policy, Ranked
from sinkpin.policies.window import Window

_METHODS = tuple(key for key, value in vars(Policy).items() if not key.startswith("_") and callable(value))
_ATTRIBUTES = ("name", *(key for key in vars(Policy) if not key.startswith("_") and key not in _METHODS))
"""What the cache asks a policy for: `name`, and all that `Policy` has a default of."""

_NAME = re.compile(r"[A-Za-z][\w.-]*")
_NEAR = 0.75  # of `difflib`: kinds, need, perhead, min_sink, windows; not depth, share, keys


def check(policy: Any) -> None:
    """Raise `PolicyError`, with the legal values or the missing method, unless the cache can go by this object."""
    if not isinstance(policy, Policy) or type(policy).keep is Policy.keep:
        raise PolicyError(
            f"policy {policy!r} is no policy: derive its class from sinkpin.policies.base.Policy and give it keep(view, n)"
        )
    name = getattr(policy, "name", None)
    if not isinstance(name, str):
        raise PolicyError(f"policy {policy!r} has no name: give its class one, results are filed under it")
    if not _NAME.fullmatch(name):
        raise PolicyError(
            f"policy name {name!r}: results are filed under it and options stand behind it after a colon; use letters, "
            "digits, '.', '_' and '-', a letter first"
        )
    home = f"{type(policy).__module__}:{type(policy).__qualname__}"
    if TABLE.get(name, home) != home:
        raise PolicyError(
            f"policy name {name!r} on {home}: it is that of {TABLE[name]}, and results would pass for its; give the class "
            "a name of its own"
        )
    _check_values(policy)
    _check_spelling(policy)
    _check_methods(policy)


def _check_values(policy: Policy) -> None:
    for key, legal in (("kind", get_args(Kind)), ("frame", get_args(Frame))):
        if (value := getattr(policy, key)) not in legal:
            raise PolicyError(f"policy {policy.name!r}: {key}={value!r}: it is {_one_of(legal)}")
    for key in ("bounded", "per_head", "across_heads", "layers_alike"):
        if not isinstance(value := getattr(policy, key), bool):
            raise PolicyError(f"policy {policy.name!r}: {key}={value!r}: it is True or False")
    if type(policy.min_sinks) is not int or policy.min_sinks < 0:
        raise PolicyError(
            f"policy {policy.name!r}: min_sinks={policy.min_sinks!r}: it is a whole number, zero or more"
        )
    needs: object = policy.needs
    if not isinstance(needs, Set):
        each = needs if isinstance(needs, str) else "mass"
        raise PolicyError(
            f"policy {policy.name!r}: needs={needs!r}: write a frozenset, frozenset({{{each!r}}})"
        )
    for need in needs:
        if need not in get_args(Need):
            raise PolicyError(
                f"policy {policy.name!r} needs {need!r}: no evidence is called that; there is {_one_of(get_args(Need))}"
            )


def _check_spelling(policy: Policy) -> None:
    """Public names, of the classes below ours, that are nearly one of the cache's."""
    options = [field.name for field in fields(policy)] if is_dataclass(policy) else list[str]()
    for cls in type(policy).__mro__[: type(policy).__mro__.index(Policy)]:
        for key, value in vars(cls).items():
            known = _METHODS if callable(value) else _ATTRIBUTES
            if key.startswith("_") or key in (*options, *_METHODS, *_ATTRIBUTES):
                continue
            if near := difflib.get_close_matches(key, known, n=1, cutoff=_NEAR):
                raise PolicyError(
                    f"policy {policy.name!r}: its {key!r} means nothing to the cache: did you mean {near[0]!r}? "
                    "If not, let it begin with an underscore"
                )


def _check_methods(policy: Policy) -> None:
    cls, name = type(policy), policy.name
    if policy.kind == "position" and policy.bounded and cls.keep is not Window.keep:
        raise PolicyError(
            f"policy {name!r} is of kind 'position', which keeps the most recent entries without asking keep(): "
            "its own choice would be ignored; make it kind 'scored'"
        )
    if isinstance(policy, Ranked) and cls.keep is Ranked.keep and type(policy).scores is Ranked.scores:
        raise PolicyError(
            f"policy {name!r} derives from Ranked, which keeps the highest scores, and gives none: give it scores(view, n)"
        )
    if policy.across_heads and not policy.per_head:
        raise PolicyError(
            f"policy {name!r} says across_heads=True and per_head=False: one set for all heads leaves no budget to share"
        )
    if policy.across_heads and not callable(getattr(policy, "share", None)):
        raise PolicyError(
            f"policy {name!r} says across_heads=True, for which the cache asks share(view, n): give it that (see adakv)"
        )
    if "recent" in policy.needs and cls.window is Policy.window:
        raise PolicyError(
            f"policy {name!r} needs 'recent', the attention of the last window(room) queries, and its window is of none: "
            "give it window(room), with 1 or more"
        )


def _one_of(legal: tuple[str, ...]) -> str:
    *most, last = map(repr, legal)
    return f"{', '.join(most)} or {last}"
