"""Finds the verb that was called, and turns what goes wrong into one line and an exit code.

Exit 0: done; 1: a check of the verb failed; 2: bad input, with one line on stderr that starts with
`sinkpin:`; 130: Ctrl-C; 141: the reader of our output went away. A bug of sinkpin itself keeps its traceback.

Not here: what the verbs do. A new verb is one file beside this one and one line in `VERBS`; its module has
`DESCRIPTION`, `EXAMPLES`, `configure(parser)` and `run(args)`.
"""

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import NoReturn

from sinkpin import __version__
from sinkpin.errors import InputError, SinkpinError

VERBS = {
    "compare": "score a text through several KV caches, with and without pinned sinks",
    "detect": "find the attention sinks of a model and a prompt, and what losing them costs",
    "plan": "find the fewest bytes whose loss is promised to stay below a limit, and check a promise",
    "probe": "ask a model what it was told, after its cache has evicted",
    "report": "make one page of results and probes, merge runs, or tell runs over time apart",
    "bench": "measure speed and memory beside DynamicCache, and how far the floor is",
    "policies": "list the eviction policies, or explain one: what it keeps, reads and takes",
}

INTERRUPTED = 130
BROKEN_PIPE = 141

# Said in every help text, since a bounded cache is easily taken for a longer memory.
FORGETS = "sinkpin does not extend the context window: what is evicted is forgotten."

_HELP = """\
usage: sinkpin VERB [options]

Pin the attention sinks, bound the KV cache, prove it on your model.
{forgets}

verbs:
{verbs}

options:
  -h, --help   show this help, or that of a verb (sinkpin VERB --help)
  --version    show the version

examples:
  sinkpin compare
  sinkpin compare MODEL --text book.txt --budget 512,1024 --sinks 0,4
  sinkpin detect MODEL --text book.txt --ablate
  sinkpin bench decode MODEL --entries 1024 --compile
  sinkpin policies
  sinkpin policies snapkv
  sinkpin compare --help
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without × and Δ shows something in their place
            stream.reconfigure(errors="replace")
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()  # here, so that a reader who went away is met inside this `try`
        return code
    except SinkpinError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        print("sinkpin: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more as it ends, and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _dispatch(argv: list[str]) -> int:
    verb = argv[0] if argv else None
    if verb in ("-h", "--help"):
        verbs = "\n".join(f"  {name:<11}{summary}" for name, summary in VERBS.items())
        print(_HELP.format(forgets=FORGETS, verbs=verbs), end="")
        return 0
    if verb == "--version":
        print(f"sinkpin {__version__}")
        return 0
    if verb is None:
        raise InputError(f"no verb given (verbs: {', '.join(VERBS)}); `sinkpin --help` shows examples")
    if verb not in VERBS:
        kind = "option" if verb.startswith("-") else "verb"
        where = "an option comes after its verb" if kind == "option" else f"verbs: {', '.join(VERBS)}"
        raise InputError(
            f"no {kind} is called {verb!r}: {_near(verb, [*VERBS, '--help', '--version'])}{where}"
        )
    module = import_module(f"sinkpin.cli.{verb}")
    parser = _Parser(
        prog=f"sinkpin {verb}",
        description=f"{module.DESCRIPTION}\n\n{FORGETS}",
        epilog=f"examples:\n{module.EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # an abbreviation in a script breaks when the next option joins
    )
    module.configure(parser)
    code: int = module.run(parser.parse(argv[1:]))
    return code


class _Parser(argparse.ArgumentParser):
    """argparse, with each of its errors as one `InputError` and the nearest name for an unknown option."""

    def parse(self, argv: list[str]) -> argparse.Namespace:
        args, unknown = self.parse_known_args(self._joined(argv))
        if unknown:
            first = unknown[0]
            if first.startswith("-") and first != "-":
                name = first.partition("=")[0]
                near = _near(name, self._option_string_actions)
                raise InputError(
                    f"no option of `{self.prog}` is called {name!r}: {near}`{self.prog} --help` lists them"
                )
            raise InputError(f"{first!r} is one argument too many: `{self.prog} --help` shows what is taken")
        return args

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; `{self.prog} --help` shows what is taken")

    def _joined(self, argv: list[str]) -> list[str]:
        """`--budget -5%` as `--budget=-5%`: argparse takes the value for an option, and would say that it is
        missing."""
        joined: list[str] = []
        for word in argv:
            last = self._option_string_actions.get(joined[-1]) if joined else None
            if last is not None and last.nargs != 0 and re.match(r"-\d", word):
                joined[-1] += f"={word}"
            else:
                joined.append(word)
        return joined


def _near(word: str, names: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(word, list(names), n=1, cutoff=0.7)
    return f"did you mean {near[0]!r}? " if near else ""


def _complain(message: str) -> int:
    """One line, whatever the message held: a library's own words may span many."""
    print(f"sinkpin: {' '.join(message.split())}", file=sys.stderr)
    return 2
