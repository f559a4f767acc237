"""The table of policies: a name, and where the class of that name lives. A new policy is one file and one line here.

The table holds strings, so that names can be checked and listed without importing torch.
"""

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sinkpin.errors import PolicyError

if TYPE_CHECKING:
    from sinkpin.policies.base import Policy

TABLE = {
    "full": "sinkpin.policies.full:Full",
    "window": "sinkpin.policies.window:Window",
    "streaming": "sinkpin.policies.window:Streaming",
    "random": "sinkpin.policies.random:Random",
}


def names() -> list[str]:
    """Every policy that can be named, in the order of the table."""
    return list(TABLE)


def check_name(name: str) -> None:
    """Raise `PolicyError`, with the nearest name, unless `name` is in the table. Imports nothing heavy."""
    if name not in TABLE:
        near = difflib.get_close_matches(name, TABLE, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise PolicyError(f"no policy is called {name!r}: {hint}there are {', '.join(TABLE)}")


def parse(written: str) -> tuple[str, dict[str, str]]:
    """Split `name` or `name:option=value,option=value`. Raises `PolicyError` for an unknown name or a broken option."""
    name, colon, rest = written.strip().partition(":")
    check_name(name)
    options: dict[str, str] = {}
    for piece in rest.split(",") if colon else []:
        key, equals, value = piece.partition("=")
        if not key.strip() or not equals or not value.strip():
            raise PolicyError(
                f"policy {written!r}: {piece!r} is not option=value; write {name}:option=value,…"
            )
        options[key.strip()] = value.strip()
    return name, options


def resolve(policy: "str | Policy", options: Mapping[str, Any] | None = None) -> "Policy":
    """The policy object for a name with options, or the object itself (which takes no further options).

    Raises `PolicyError` for an unknown name or option, a value of the wrong type, or an object without `keep`.
    """
    given = dict(options or {})
    if not isinstance(policy, str):
        if not callable(getattr(policy, "keep", None)):
            raise PolicyError(
                f"policy {policy!r} has no keep(view, n): pass a name or an object that has one"
            )
        if given:
            raise PolicyError(f"options {sorted(given)} with a policy object: set them on the object instead")
        return policy
    name, written = parse(policy)
    if twice := sorted(written.keys() & given.keys()):
        raise PolicyError(f"policy {policy!r}: {twice[0]} is given twice; give it once")
    module, _, attribute = TABLE[name].partition(":")
    cls = getattr(import_module(module), attribute)
    known = {field.name: field for field in fields(cls)}
    values: dict[str, Any] = {}
    for key, value in (written | given).items():
        if key not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise PolicyError(f"policy {name!r} has no option {key!r}: {has}")
        values[key] = _as_typed(name, key, value, known[key].type)
    missing = [f.name for f in known.values() if f.default is MISSING and f.name not in values]
    if missing:
        raise PolicyError(f"policy {name!r} needs the option {missing[0]!r}: write {name}:{missing[0]}=value")
    made: Policy = cls(**values)
    return made


def _as_typed(name: str, key: str, value: Any, wanted: Any) -> Any:
    """An option from the command line is text; make it what the policy's field says it is."""
    kinds = {"int": int, "float": float, "str": str, "bool": bool}
    kind = kinds.get(wanted if isinstance(wanted, str) else getattr(wanted, "__name__", ""))
    if kind is None:
        return value
    try:
        if kind is bool:
            if str(value).lower() not in ("true", "false"):
                raise ValueError(value)
            return str(value).lower() == "true"
        if kind is int and not (isinstance(value, str) or int(value) == value):
            raise ValueError(value)
        return kind(value)
    except (TypeError, ValueError):
        raise PolicyError(f"policy {name!r}: {key}={value!r} is not of type {kind.__name__}") from None
