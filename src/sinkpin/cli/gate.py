"""`plan --check`: a promise measured again, as a gate: on the text that it was certified on, or on one it has not seen.

The promise is broken where the bound is no longer below its limit, where the model or the tokenizer is another, and where a
session holds more bytes. Not here: what stands in the file (`evaluate.advisor.promise`).
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sinkpin import demo
from sinkpin.card import Card
from sinkpin.cli import load, passages
from sinkpin.cli.progress import waiting
from sinkpin.cli.subject import identity, memory_told
from sinkpin.errors import InputError

if TYPE_CHECKING:
    from sinkpin.evaluate.advisor.passages import Passage
    from sinkpin.evaluate.advisor.promise import Checked, Promise


def check(args: argparse.Namespace, tokens: int) -> int:
    """The exit status: 0 where the promise holds. `tokens`: how many are used at most where nothing says so."""
    from sinkpin.evaluate.advisor import promise as promises
    from sinkpin.evaluate.advisor.workloads import WORKLOADS

    for option in ("workload", "max_loss", "policy", "sinks", "budget", "system", "length", "chunk"):
        if getattr(args, option) is not None:
            flag = option.replace("_", "-")
            raise InputError(f"--{flag} with --check: the file says what was promised; leave --{flag} out")
    if args.tokens is not None and args.text is None:
        raise InputError(
            "--tokens with --check: the text that was certified on is the file's; leave --tokens out, or give a new --text"
        )
    promise = promises.read(args.check)
    document, workload = promise.document, WORKLOADS[promise.document["workload"]]
    own = args.text is None
    documents = passages.read(passages.sources_of(document["texts"]) if own else args.text, workload.name)
    if own:
        passages.same_texts(documents, document["texts"])
    card = _card_of(promise, args.pins)
    named = args.model or (None if document["model"] == demo.NAME else document["model"])
    with waiting(f"loading {named or demo.NAME}"):
        loaded = load.load_model(named, dtype=args.dtype, device=args.device)
    from sinkpin.evaluate.advisor.passages import split

    length = document["design"]["length"]
    tokens = (document.get("tokens") if own else args.tokens) or tokens
    found, _, notes = passages.passages_of(
        loaded.tokenizer, documents, workload, length, tokens, document.get("system"), card
    )
    part = split(found)[1] if own else found
    used = {text["sha256"] for text in document["texts"]}
    notes += [
        f"{each.text.name} is a text that the promise was made on: what is found on it is no new evidence"
        for each in documents
        if not own and each.sha256 in used
    ]
    checked = _measured_again(promise, part, loaded, notes)
    stream = sys.stderr if args.json else sys.stdout
    if checked is None:
        from sinkpin.evaluate.advisor.bound import FEWEST
        from sinkpin.evaluate.advisor.passages import blocks

        print(
            f"Not enough text to check this: {blocks(part)} blocks, and {FEWEST} are needed. Nothing was run.",
            file=stream,
        )
        if args.json:
            print(json.dumps({"schema": 1, "holds": None, "blocks": blocks(part)}))
        return 1
    from sinkpin.evaluate.advisor.words import checked_text

    print(f"{args.check}: {checked_text(checked)}", file=stream)
    if args.json:
        print(json.dumps(checked.to_json(), allow_nan=False))
    return int(bool(checked.broken))


def _measured_again(
    promise: "Promise", part: "list[Passage]", loaded: load.Loaded, notes: list[str]
) -> "Checked | None":
    """The promise on `part`; None where that is not enough text."""
    from sinkpin.evaluate.advisor.bound import CONFIDENCE, FEWEST, bound
    from sinkpin.evaluate.advisor.measure import Measurer
    from sinkpin.evaluate.advisor.passages import blocks
    from sinkpin.evaluate.advisor.promise import Checked
    from sinkpin.evaluate.advisor.words import percent

    if blocks(part) < FEWEST:
        return None
    document, setting = promise.document, promise.setting
    broken, now = [], identity(loaded)
    for key, what in (("model_hash", "the model"), ("tokenizer_hash", "the tokenizer")):
        if now[key] != document[key]:
            broken.append(
                f"{what} is another (its hash begins with {now[key][:12]}, it was {document[key][:12]}): plan again"
            )
    with memory_told(loaded, len(part[0].ids)), waiting(f"checking {loaded.name}") as say:
        measurer = Measurer(
            loaded.model,
            document["design"]["chunk"],
            lambda what, done, of: say(f"{what}, passage {done} of {of}"),
        )
        found = bound(measurer([setting], part)[setting.name])
        held = measurer.bytes_of(setting, part)
    if not found.within(promise.max_loss):
        broken.append(
            f"the loss may be up to {percent(found.at_most)} with {CONFIDENCE:.0%} confidence, and less than "
            f"{percent(promise.max_loss)} was promised"
        )
    before = (document.get("memory") or {}).get("session_bytes")
    if isinstance(before, int) and held > before:
        broken.append(f"a session holds {held:,} bytes, and {before:,} were promised")
    notes += [
        f"{package}: {document.get('versions', {}).get(package)} → {version}"
        for package, version in now["versions"].items()
        if document.get("versions", {}).get(package) != version
    ]
    return Checked(setting, promise.max_loss, found, tuple(broken), tuple(notes))


def _card_of(promise: "Promise", given: Path | None) -> Card | None:
    """The sink card that the promise pins by."""
    if promise.setting.pins != "card":
        if given is not None:
            raise InputError(f"--pins {given}: the promise pins by no card; leave it out")
        return None
    place = given or promise.document.get("card")
    if place is None:
        raise InputError("the promise pins by a sink card that it does not name: give --pins FILE")
    return Card.read(place)
