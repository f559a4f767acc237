"""`python -m sinkpin.evaluate.lm_eval …`: the command `lm_eval`, with `--model sinkpin` known to it and set.

For releases of lm-eval that look for no plug-ins. Every option is lm-eval's. A `--model` of one's own wins, so that `hf` can
be run beside it. Exit codes are lm-eval's, except 2 for what sinkpin refuses, with one line on stderr.
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from sinkpin.errors import SinkpinError

_VERBS = ("ls", "validate")  # of lm-eval, beside `run`: they know no --model


def main(argv: Sequence[str] | None = None) -> int:
    """Run lm-eval's command line with our model in it, and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    missing = [package for package in ("lm_eval", "accelerate") if find_spec(package) is None]
    if missing:
        return _complain(f"there is no {' and no '.join(missing)} here: pip install 'sinkpin[eval]'")
    from lm_eval.__main__ import cli_evaluate

    from sinkpin.evaluate.lm_eval import SinkpinLM  # noqa: F401 - gives its name to lm-eval

    if words[:1] == ["run"]:
        words = words[1:]
    sys.argv = (
        ["lm_eval", *words] if words[:1] and words[0] in _VERBS else ["lm_eval", "--model", "sinkpin", *words]
    )
    try:
        cli_evaluate()
    except SinkpinError as error:
        return _complain(str(error))
    return 0


def _complain(message: str) -> int:
    sys.stderr.write(f"sinkpin: {' '.join(message.split())}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
