"""A cache in one safetensors file: written atomically, no pickle, refused where it would not continue bit for bit.

The file holds every tensor the cache owns, how it was set up, a fingerprint of the model (its configuration and a piece
of its weights), and a digest of all that, which finds damage, not a forger. Not covered: the model and tokenizer themselves, the text that was fed
(it is not kept), and encryption.
"""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

import sinkpin
from sinkpin.cache import compat
from sinkpin.card import Card
from sinkpin.errors import CacheError, InputError, PolicyError
from sinkpin.policies import resolve, spelled
from sinkpin.policies.pins import Pins

if TYPE_CHECKING:
    from sinkpin.cache.bounded import BoundedCache
    from sinkpin.policies.base import Policy

SCHEMA = 2
_SAMPLE = 64  # rows of the embedding that tell two models of one configuration apart


def save(cache: "BoundedCache", path: str | Path) -> None:
    """Write `cache` to `path`; an older file there stays whole until the new one is. See `BoundedCache.save`."""
    try:
        policy: Any = dict(zip(("name", "options"), spelled(cache.policy), strict=True))
    except PolicyError:
        policy = {"name": cache.policy.name, "options": None}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in cache.state().items()}
    about = {
        "schema": SCHEMA,
        "sinkpin": sinkpin.__version__,
        "model": fingerprint(cache.door.decoder),
        "policy": policy,
        "setup": _setup(cache),
    }
    about["digest"] = _digest(about, tensors)
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file in it to save the cache to")
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:  # in its own words it names a temporary file
        raise InputError(
            f"cannot save the cache to {path} ({error.strerror or error}): {path.parent} has to be a folder that may be "
            "written to; make it first, or name another file"
        ) from error
    os.close(handle)
    try:
        save_file(tensors, temporary, metadata={"sinkpin": json.dumps(about)})
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load(path: str | Path, model: Any, policy: "Policy | None" = None) -> "BoundedCache":
    """The cache that `save` wrote, on `model`. See `BoundedCache.load`."""
    from sinkpin.cache.bounded import BoundedCache

    about, tensors = _read(Path(path))
    if about.get("schema") != SCHEMA:
        raise CacheError(
            f"{path} has schema {about.get('schema')}, this sinkpin ({sinkpin.__version__}) reads {SCHEMA}: load it with "
            f"sinkpin {about.get('sinkpin')}"
        )
    if _digest({key: about[key] for key in about if key != "digest"}, tensors) != about.get("digest"):
        raise CacheError(
            f"{path} was changed after it was written (its digest differs): its contents cannot be trusted"
        )
    print_here = fingerprint(compat.decoder_of(compat.causal_lm(model)))
    if about["model"] != print_here:
        raise CacheError(
            f"{path} is of another model ({about['model'][:12]}…, this one is {print_here[:12]}…): its keys mean nothing "
            "here; load it with the model that wrote it"
        )
    if policy is None:
        written = about["policy"]
        if written["options"] is None:
            raise PolicyError(
                f"{path} was written under the policy object {written['name']!r}: pass it as policy="
            )
        policy = resolve(written["name"], written["options"])
    elif policy.name != about["policy"]["name"]:
        raise PolicyError(f"{path} was written under policy {about['policy']['name']!r}, not {policy.name!r}")
    elif about["policy"]["options"] is not None and about["policy"]["options"] != spelled(policy)[1]:
        raise PolicyError(
            f"{path} was written under {policy.name} with {about['policy']['options'] or 'its defaults'}, not "
            f"{spelled(policy)[1] or 'its defaults'}: it would go on under another rule; leave policy= out"
        )
    setup = about["setup"]
    per_row, given = setup["pins_per_row"], setup["pins"]
    if setup["sinks"] == "auto":
        per_row, given = setup["per_row_at_first"], setup["pins_at_first"]
    rows = [[tuple(span) for span in row] for row in given]
    cache = BoundedCache(
        model,
        budget=setup["budget"],
        policy=policy,
        sinks=setup["sinks"],
        pins=_card(setup) or (rows if per_row else rows[0]),
        frame=setup["frame"],
        prompt_length=setup["prompt_length"],
    )
    _fill(cache, setup, tensors)
    return cache


def _setup(cache: "BoundedCache") -> dict[str, Any]:
    """How the cache was set up and how far it is, as JSON; with `cache.state()`, all there is to it."""
    return {
        "budget": None if cache._budget is None else cache._budget.text,
        "tokens": cache.budget_tokens,
        "sinks": cache.sinks,
        "pins": [list(row) for row in cache._pins.rows],
        "pins_at_first": [list(row) for row in cache._pins_at_first.rows],
        "per_row_at_first": cache._pins_at_first.per_row,
        "pins_per_row": cache._pins.per_row,
        "card": None if cache._card is None else cache._card.to_json(),
        "notes_of_pins": cache._of_pins,
        "frame": cache.frame,
        "prompt_length": cache._prompt_length,
        "notes": cache.notes,
        "stream": cache._stream.numbers(),
        "open": [layer.is_open for layer in cache._layers],
    }


def _fill(cache: "BoundedCache", setup: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Make an empty cache what `_setup` and `state` had."""
    of_prompt = cache._card is not None or cache.sinks == "auto"
    if of_prompt:  # what the prompt made of the pins
        rows = tuple(tuple((start, stop) for start, stop in row) for row in setup["pins"])
        cache._pins = cache._stream.pins = Pins(rows, setup["pins_per_row"])
    if setup["tokens"] is not None and (cache.budget_tokens is None or of_prompt):
        cache._allot(setup["tokens"])
    cache.notes, cache._of_pins = setup["notes"], setup.get("notes_of_pins", [])

    def of(owner: str) -> dict[str, Tensor]:
        return {name.removeprefix(owner): x for name, x in tensors.items() if name.startswith(owner)}

    entry = compat.entry_device(cache.door.decoder)
    cache._stream.restore(setup["stream"], of("stream."), entry)
    for number, ledger in enumerate(cache._ledgers()):
        ledger.restore(of(f"ledgers.{number}."), entry)
    for number, layer in enumerate(cache._layers):
        layer.restore(of(f"layers.{number}."), is_open=setup["open"][number])


def _card(setup: dict[str, Any]) -> Card | None:
    return None if setup.get("card") is None else Card.from_json(setup["card"], "the sink card of this cache")


def fingerprint(decoder: Any) -> str:
    """sha256 of what makes a decoder's keys its own: its configuration, and the first rows of its embedding."""
    config = decoder.config.to_dict()
    told = {
        key: config[key] for key in sorted(config) if key not in ("_name_or_path", "transformers_version")
    }
    hashed = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode())
    weight = decoder.get_input_embeddings().weight
    if weight.device.type != "meta":  # offloaded weights are elsewhere just now
        hashed.update(_bytes(weight.detach()[:_SAMPLE].cpu()))
    return hashed.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["sinkpin"])
            return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise CacheError(f"{path} is not there: no cache can be loaded from it") from None
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise CacheError(
            f"{path} is torn or was not written by sinkpin ({error}): it cannot be loaded"
        ) from None


def _digest(about: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    hashed = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        hashed.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        hashed.update(_bytes(tensor))
    return hashed.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
