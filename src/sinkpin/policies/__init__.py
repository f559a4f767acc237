"""The table of policies: a name, and where the class of that name lives. A new policy is one file and one line here.

The table holds strings, so that names can be checked and listed without importing torch.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, get_args

from sinkpin.errors import PolicyError, SinkpinError

if TYPE_CHECKING:
    from sinkpin.policies.base import Policy

TABLE = {
    "full": "sinkpin.policies.full:Full",
    "window": "sinkpin.policies.window:Window",
    "streaming": "sinkpin.policies.window:Streaming",
    "random": "sinkpin.policies.random:Random",
    "h2o": "sinkpin.policies.h2o:H2O",
    "tova": "sinkpin.policies.tova:TOVA",
    "keydiff": "sinkpin.policies.keydiff:KeyDiff",
    "lagkv": "sinkpin.policies.lagkv:LagKV",
    "snapkv": "sinkpin.policies.snapkv:SnapKV",
    "pyramidkv": "sinkpin.policies.pyramidkv:PyramidKV",
    "expected": "sinkpin.policies.expected:Expected",
    "adakv": "sinkpin.policies.adakv:AdaKV",
}


ENTRY_POINTS = "sinkpin.policies"
"""The entry-point group under which other distributions offer their policies."""


def table() -> dict[str, str]:
    """Every policy that can be named, ours first, then those of installed distributions; a name of ours stays ours."""
    installed = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    return TABLE | {name: home for name, home in sorted(installed.items()) if name not in TABLE}


def names() -> list[str]:
    """The names in the table."""
    return list(table())


def check_name(name: str) -> None:
    """Raise `PolicyError`, with the nearest name, unless `name` is in the table. Imports nothing heavy."""
    if name not in TABLE and name not in (there := table()):
        near = difflib.get_close_matches(name.lower(), there, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise PolicyError(f"no policy is called {name!r}: {hint}there are: {', '.join(there)}")


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

    Options of a policy that another one wraps are written `base.option`: `adakv:base=snapkv,base.kernel=5`.
    Raises `PolicyError` for an unknown name or option, a value of the wrong type, a class that cannot be loaded, or
    a policy that says of itself what the cache cannot honour (see `declared`).
    """
    from sinkpin.policies.declared import check

    given = dict(options or {})
    if not isinstance(policy, str):
        if given:
            raise PolicyError(f"options {sorted(given)} with a policy object: set them on the object instead")
        check(policy)
        return policy
    name, written = parse(policy)
    if twice := sorted(written.keys() & given.keys()):
        raise PolicyError(f"policy {policy!r}: {twice[0]} is given twice; give it once")
    cls = _loaded(name)
    known = {field.name: field for field in fields(cls) if field.init}
    wanted = written | given
    if inner := {key: wanted.pop(key) for key in list(wanted) if key.startswith("base.") and "base" in known}:
        base = wanted.get("base", known["base"].default)
        wanted["base"] = resolve(base, {key.removeprefix("base."): value for key, value in inner.items()})
    values: dict[str, Any] = {}
    for key, value in wanted.items():
        if key not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            near = difflib.get_close_matches(key, known, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise PolicyError(f"policy {name!r} has no option {key!r}: {has}{meant}")
        values[key] = _as_typed(name, key, value, known[key].type)
    missing = [
        f.name for f in known.values() if f.default is f.default_factory is MISSING and f.name not in values
    ]
    if missing:
        raise PolicyError(f"policy {name!r} needs the option {missing[0]!r}: write {name}:{missing[0]}=value")
    try:
        made = cls(**values)
    except SinkpinError:
        raise
    except (TypeError, ValueError) as error:  # what its own check of its options says
        raise PolicyError(f"policy {name!r}: {error}") from error
    check(made)
    return made


def spelled(policy: "Policy") -> tuple[str, dict[str, Any]]:
    """A name and options, as JSON, from which `resolve` makes an equal policy. Raises `PolicyError` where none do."""
    options: dict[str, Any] = {}
    written: list[str] = (
        [field.name for field in fields(policy) if field.init] if is_dataclass(policy) else []
    )
    for option in written:
        value = getattr(policy, option)
        if option == "base":
            value, inner = spelled(value)
            options |= {f"base.{key}": each for key, each in inner.items()}
        options[option] = value
    try:
        read_back = json.loads(json.dumps(options))
    except TypeError:  # an option that is no number or text
        read_back = None
    if policy.name not in table() or read_back is None or resolve(policy.name, read_back) != policy:
        raise PolicyError(
            f"policy {policy!r} cannot be written down: no name in the table makes it; install it under the entry-point "
            f"group {ENTRY_POINTS}, or pass it again when loading"
        )
    return policy.name, options


def _loaded(name: str) -> Any:
    """The class of that name. Raises `PolicyError` where it cannot be loaded, or is none that options can be given."""
    from sinkpin.policies.base import Policy

    home = table()[name]
    try:
        cls = EntryPoint(name, home, ENTRY_POINTS).load()
    except Exception as error:  # whatever the import of somebody's module raises
        why = f"{type(error).__name__}: {error}"
        raise PolicyError(
            f"policy {name!r} ({home}) cannot be loaded ({why}): mend or remove the distribution that offers it"
        ) from error
    own = vars(cls).get("__dataclass_params__") if isinstance(cls, type) else None
    if own is None or not own.frozen or not issubclass(cls, Policy):
        raise PolicyError(
            f"policy {name!r} ({home}) must be a frozen dataclass derived from sinkpin.policies.base.Policy"
        )
    return cls


def _as_typed(name: str, key: str, value: Any, wanted: Any) -> Any:
    """An option from the command line is text; make it what the policy's field says it is."""
    kinds = {"int": int, "float": float, "str": str, "bool": bool}
    if type(None) in (choices := get_args(wanted)):  # `int | None`: None, or what it is beside that
        if value is None or str(value).lower() == "none":
            return None
        wanted = next(choice for choice in choices if choice is not type(None))
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
