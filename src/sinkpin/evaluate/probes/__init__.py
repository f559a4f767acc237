"""Probes: what a bounded cache forgets, asked directly, since perplexity does not see everything.

One probe, one file, one line in `TABLE`. A probe writes trials and knows what is right (`base`); `run` puts them through all
arms, each read by a `reader`; `tally`, `intervals` and `verdict` make numbers and words of the answers, `record` keeps them
and `text` shows them. Neither the probes nor the record need torch.
"""

from dataclasses import fields
from typing import Any

from sinkpin.errors import InputError
from sinkpin.evaluate.probes.base import Probe
from sinkpin.evaluate.probes.instructions import Instructions
from sinkpin.evaluate.probes.names import Names
from sinkpin.evaluate.probes.needle import Needle
from sinkpin.evaluate.probes.passkey import Passkey
from sinkpin.evaluate.probes.repetition import Repetition
from sinkpin.evaluate.probes.streameval import StreamEval

TABLE: dict[str, type[Probe]] = {
    probe.name: probe for probe in (StreamEval, Needle, Passkey, Names, Repetition, Instructions)
}


def named(name: str, **settings: Any) -> Probe:
    """The probe of that name. Raises `InputError` for one that there is not, and for settings it does not have."""
    if name not in TABLE:
        raise InputError(f"no probe is called {name!r} (there are {', '.join(TABLE)})")
    known = [field.name for field in fields(TABLE[name])]
    if wrong := [setting for setting in settings if setting not in known]:
        raise InputError(
            f"--{wrong[0]} is no setting of the probe {name} (it has {', '.join(f'--{setting}' for setting in known)})"
        )
    return TABLE[name](**settings)
