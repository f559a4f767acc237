"""The options of `sinkpin bench`: those of each verb's class in `bench.settings`, which has their defaults, too.

One parser holds them all, so that a mistyped one finds its nearest name; an option of another verb is refused. Not
here: options that every verb has for its model and text (`bench`).
"""

import argparse
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from sinkpin.bench.settings import VERBS, Settings
from sinkpin.errors import InputError

_PREFIX = "bench_"  # of their names in the parsed arguments


def add(parser: argparse.ArgumentParser) -> None:
    """Every option of every verb; one that is not given is absent from the arguments."""
    for name, uses in _uses().items():
        _add(parser, name, uses)


def settings_of(args: argparse.Namespace) -> Settings:
    """What was given, for this verb. Raises `InputError` for an option that it does not have."""
    given = {
        name.removeprefix(_PREFIX): value for name, value in vars(args).items() if name.startswith(_PREFIX)
    }
    own = {each.name: each for each in fields(VERBS[args.verb])}
    uses = _uses()
    for name, value in given.items():
        if name not in own:
            flag = f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
            raise InputError(f"{flag} is an option of {' and '.join(uses[name])}, not of {args.verb}")
        given[name] = _parsed(name, value, own[name].default)
    return VERBS[args.verb](**given)


def _uses() -> dict[str, dict[str, Any]]:
    """Each option -> the verbs that have it, with their field of it."""
    found: dict[str, dict[str, Any]] = {}
    for verb, settings in VERBS.items():
        for each in fields(settings):
            found.setdefault(each.name, {})[verb] = each
    return found


def _add(parser: argparse.ArgumentParser, name: str, uses: dict[str, Any]) -> None:
    """One option, whose help says for each verb what it means there. Absent unless given."""
    flag = f"--{name.replace('_', '-')}"
    option: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": f"{_PREFIX}{name}"}
    default = next(iter(uses.values())).default
    if default is True:
        flag, option["action"] = f"--no-{name.replace('_', '-')}", "store_false"
    elif default is False:
        option["action"] = "store_true"
    elif name == "policy":
        option |= {"metavar": "NAME[@FRAME]", "action": "append"}
    elif isinstance(default, str):
        option["metavar"] = "DIR" if name == "out" else "NAME"
    elif any(isinstance(each.default, tuple) for each in uses.values()):
        option["metavar"] = "N[,N...]"
    else:
        option |= {"metavar": "N", "type": int}
    parser.add_argument(flag, help=_help(uses).replace("%", "%%"), **option)


def _help(uses: dict[str, Any]) -> str:
    said: dict[str, list[str]] = {}
    for verb, each in uses.items():
        assert each.default is not MISSING
        words = each.metadata["says"]
        if each.default is True:
            words = f"without {words}"
        elif each.default is not False:
            words += f" (default: {_written(each.default)})"
        said.setdefault(words, []).append(verb)
    return "; ".join(
        words if len(verbs) == len(VERBS) else f"{', '.join(verbs)}: {words}" for words, verbs in said.items()
    )


def _written(default: object) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _parsed(name: str, value: Any, default: object) -> Any:
    if not isinstance(value, str) or isinstance(default, str):
        return tuple(value) if isinstance(value, list) else value
    number: Callable[[str], int] = _number(name, value)
    numbers = tuple(number(item) for item in value.split(","))
    if isinstance(default, tuple):
        return numbers
    if len(numbers) > 1:
        raise InputError(f"--{name.replace('_', '-')} {value}: this verb takes one number")
    return numbers[0]


def _number(name: str, written: str) -> Callable[[str], int]:
    def number(item: str) -> int:
        try:
            return int(item)
        except ValueError:
            raise InputError(
                f"--{name.replace('_', '-')} {written!r}: write whole numbers, comma-separated"
            ) from None

    return number
