"""`BoundedCache`: a transformers cache that never holds more than its budget, under any policy, with pins on top.

It does not extend the context window: what is evicted is forgotten. Not covered here: how attention is computed
(`sinkpin.attention`), which entries a policy prefers (`sinkpin.policies`), how a forward finds us (`binding`).
"""

import copy
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import Cache

from sinkpin.attention.mass import HeadMass
from sinkpin.budget import Budget, Footprint
from sinkpin.cache import carded, snapshot
from sinkpin.cache.audit import HeadAudit, audit
from sinkpin.cache.binding import Door
from sinkpin.cache.evidence import OF_QUERIES, Evidence
from sinkpin.cache.forward import Forward
from sinkpin.cache.layer import BoundedLayer
from sinkpin.cache.ledger import Ledger, Plan, Rule, held
from sinkpin.cache.step import in_order
from sinkpin.cache.stream import Stream
from sinkpin.card import Card
from sinkpin.errors import BudgetError, CacheError, InputError, ModelError, PolicyError
from sinkpin.policies import resolve
from sinkpin.policies.base import Frame, Policy
from sinkpin.policies.pins import Pins
from sinkpin.policies.window import Window

_LAST = torch.iinfo(torch.int32).max  # an origin's largest index
_ORIGIN_BYTES = 4  # int32, for each entry of a ledger
_COUNT_BYTES = 4  # int32, for each head of a ledger whose heads hold different numbers
_ROW_BYTES = 8  # int64, for each row: how many real tokens it was fed
_SPAN_BYTES = 16  # two int64, for each span of pins of a row


class BoundedCache(Cache):
    """A KV cache for `model(…)` and `model.generate(…)` that holds at most `budget` entries per layer and KV head: on
    average over layers or heads for a policy that shares it out unevenly (`pyramidkv`, `adakv`), and after the prompt
    for one that chooses when that ends (`snapkv`, `pyramidkv`).

    `budget`: tokens (`1024`), a share of the prompt (`"25%"`) or bytes of one row (`"64MiB"`), pins included; only
    `policy="full"` takes none. `policy`: a name or an object with `keep(view, n)`. `sinks`: the first real tokens of
    each row, pinned; `"auto"`: the first forward is computed in full, its sinks are found and pinned (`detect` says more of
    them), and only then something is evicted. `pins`: further spans `(start, stop)` of token indices, one list for all rows or one per row; or a
    sink card, or its file (`"sinks.json"`), whose rules are resolved for each row at the first forward.
    `frame`: `"slots"` (a key's position is its rank in the cache) or `"original"` (its index in the text); by default
    the policy's own. `prompt_length`: the prompt's tokens, where it is fed in pieces, instead of the longest row of the first
    forward: what a share is taken of, and where a prompt policy chooses.
    Further keywords are the policy's options.

    Raises `BudgetError`, `PolicyError`, `InputError` for what cannot be read or held, `ModelError` for a model whose
    attention cannot be bounded truthfully. A cache is also a context manager; `close()` gives the model back as it was.
    """

    def __init__(
        self,
        model: Any,
        budget: int | str | Budget | None = None,
        policy: str | Policy = "window",
        sinks: int | Literal["auto"] = 4,
        pins: Sequence[object] | str | Path | Card | None = None,
        frame: Frame | None = None,
        prompt_length: int | None = None,
        **policy_options: Any,
    ) -> None:
        self.policy = resolve(policy, policy_options)
        self.sinks = sinks
        self.notes: list[str] = []
        self._first = 0 if sinks == "auto" else sinks
        self._pins, self._card = carded.read_pins(self._first, pins)
        self._pins_at_first = self._pins
        self._budget = _checked_budget(self.policy, budget, sinks)
        if frame not in (None, "slots", "original"):
            raise PolicyError(
                f"frame {frame!r}: it is 'slots' (ranks in the cache) or 'original' (indices in the text)"
            )
        if prompt_length is not None and (type(prompt_length) is not int or prompt_length < 1):
            raise BudgetError(
                f"prompt_length={prompt_length!r}: a prompt is a whole number of tokens, at least one"
            )
        self._prompt_length = prompt_length
        self._enter_by(Door.on(model))
        try:
            self._build(frame)
        except BaseException:
            self.close()
            raise

    def _enter_by(self, door: Door) -> None:
        self.door = door
        self._leave = weakref.finalize(self, Door.leave, door)
        self._leave.atexit = False

    def _build(self, frame: Frame | None) -> None:
        anatomy = self.door.anatomy
        self.frame: Frame = frame or ("original" if anatomy.learned else self.policy.frame)
        if anatomy.learned and self.frame == "slots":
            raise ModelError(
                "this model adds learned position embeddings before the cache, so a key cannot move to its rank: use "
                f"frame='original', whose stream ends at {anatomy.trained} tokens"
            )
        if all(facts.sliding is not None for facts in anatomy.layers):
            raise ModelError(
                f"every layer has a sliding window of {anatomy.layers[0].sliding} tokens: this model's cache is bounded "
                "already and has no full-attention layer for a budget; load it with sliding_window=None to bound it"
            )
        for note in anatomy.notes:
            self._note(note)
        self._tokens: int | None = None
        self._of_budget: list[str] = []  # notes that go with the budget
        self._of_pins: list[str] = []  # and with pins that hang on the prompt
        self._looking: dict[int, HeadMass] | None = None
        self._recorded = False
        self._precision = self.door.precision
        self._broken = False
        remembers = not OF_QUERIES.isdisjoint(self.policy.needs)
        # Without a length, the prompt is what the first forward brings.
        ends = (self._prompt_length or 1) if self.policy.kind == "prompt" else None
        self._stream = Stream(self._pins, ends, remembers=remembers)
        # A key is rotated once where no later query sees it at another distance or with other frequencies.
        steady = self.frame == "slots" or anatomy.stretches_past is None
        moves = self.policy.kind != "position" and self.frame == "slots"
        turned = steady and not moves and "keys" not in self.policy.needs
        rule = Rule(self.policy, None, self.frame, self._pins.most, turned)
        common = Ledger(rule, heads=1, shared=True)
        windows: dict[int, Ledger] = {}
        self._layers: list[BoundedLayer] = []
        in_bytes = self._budget is not None and self._budget.kind == "bytes"
        for facts in anatomy.layers:
            if facts.sliding is not None:
                own = Rule(Window(), facts.sliding, "original", 0, steady)
                ledger = windows.setdefault(facts.sliding, Ledger(own, heads=1, shared=True))
            elif self.policy.kind == "position":
                ledger = common
            else:
                ledger = Ledger(rule, heads=facts.kv_heads if self.policy.per_head else 1, shared=False)
            self._layers.append(BoundedLayer(self._stream, facts, ledger, promised_bytes=in_bytes))
        Cache.__init__(self, layers=list(self._layers))
        known = self._budget is not None and (self._budget.kind != "share" or self._prompt_length is not None)
        if known and self.sinks != "auto":
            self._settle_budget(self._prompt_length)

    def _settle_budget(self, prompt: int | None) -> None:
        """Fix the budget in tokens, for good or, where it is a share, until `reset()`."""
        assert self._budget is not None
        tokens, note = self._budget.tokens(pins=self._pins.most, footprint=self.footprint, prompt=prompt)
        notes = [] if note is None else [note]
        trained, stretches = self.door.anatomy.trained, self.door.anatomy.stretches_past
        if self.frame == "slots" and trained is not None and tokens > trained:
            notes.append(f"budget {tokens} is above the {trained} positions the model was trained on")
        if self.frame == "slots" and stretches is not None and tokens > stretches:
            notes.append(
                f"budget {tokens} is above {stretches}, where this model's rotary frequencies change: those of a text "
                f"of {tokens} tokens are used from the first token on, so that all keys agree"
            )
        self._allot(tokens, notes)

    def _allot(self, tokens: int, notes: Sequence[str] = ()) -> None:
        """Tell each layer its budget: the same, unless the policy allots otherwise. Raises `PolicyError`, with nothing
        changed, for parts that do not add up or a window that cannot hold."""
        policy, pins, indices = self.policy, self._pins.most, self.bounded_layers
        parts = [policy.layer_budget(number, len(indices), tokens, pins) for number in range(len(indices))]
        if sum(parts) != tokens * len(indices) or min(parts) <= pins:
            raise PolicyError(
                f"policy {policy.name!r} allots {sum(parts)} entries over {len(indices)} layers, at least {min(parts)} to "
                f"each: it must be {tokens * len(indices)}, {tokens} on average, and more than the {pins} pins; correct "
                "its layer_budget()"
            )
        shared = self._layers[indices[0]].ledger.shared
        windows = {0 if shared else _checked_window(policy, part - pins) for part in parts}
        for index, part in zip(indices, parts, strict=True):
            ledger = self._layers[index].ledger
            ledger.rule = replace(ledger.rule, budget=part, pins=pins)
        self._tokens = tokens
        self.notes = [note for note in self.notes if note not in self._of_budget]
        said = list(notes)
        if max(windows) > 1:
            spread = f"{max(windows)}" if len(windows) == 1 else f"{min(windows)} to {max(windows)}, by layer"
            said.append(f"{policy.name}: a window of {spread}, in room for {tokens - pins} unpinned entries")
        if policy.kind == "prompt":
            said.append(f"{policy.name} holds the whole prompt until it ends, whatever the budget")
        self._of_budget = [note for note in said if note not in self.notes]
        self.notes += self._of_budget

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _look_first(self) -> None:
        """`sinks="auto"`: the forward that begins is computed in full, and looked at; nothing is evicted until its end."""
        self._pins = self._stream.pins = self._pins_at_first
        self._tokens, self._looking = None, self.witness()
        for ledger in self._bounded_ledgers():
            ledger.rule = replace(ledger.rule, budget=None, pins=self._pins.most)
        self._recorded, self._stream.recording = self._stream.recording, True

    def _pin_what_was_found(self) -> None:
        """That forward has ended: pin, and evict what is over the budget."""
        from sinkpin.cache.found import sinks_of  # SciPy, for those who ask for it

        stream = self._stream
        assert self._budget is not None and stream.real is not None and self._looking is not None
        room, _ = self._budget.tokens(
            pins=self._pins.most, footprint=self.footprint, prompt=self._prompt_length or stream.longest
        )
        rows, notes = sinks_of(list(self._looking.values()), stream.real, room - self._pins.most)
        self._stop_looking()
        self._note_of_pins(notes)
        given = [self._pins.rows[row if self._pins.per_row else 0] for row in range(len(rows))]
        self._pins = stream.pins = Pins.read(
            0, [[*mine, *found] for mine, found in zip(given, rows, strict=True)]
        )
        stream.spans = self._pins.tensor(len(rows), stream.real.device)
        self._settle_budget(self._prompt_length or stream.longest)
        stream.recording = self._recorded
        if not stream.recording:
            self._commit()

    def _stop_looking(self) -> None:
        self._looking = None
        for layer in self._layers:
            layer.witness = None

    def _ledgers(self) -> list[Ledger]:
        return list({id(layer.ledger): layer.ledger for layer in self._layers}.values())

    def _bounded_ledgers(self) -> list[Ledger]:
        return list(
            {id(layer.ledger): layer.ledger for layer in self._layers if layer.facts.sliding is None}.values()
        )

    # what a user asks

    @property
    def seen(self) -> int:
        """Columns fed so far, padding included: what transformers slices its inputs by."""
        return self._stream.columns

    @property
    def budget_tokens(self) -> int | None:
        """The budget in entries; None for `full`, and for a share before the first forward."""
        return self._tokens

    @property
    def footprint(self) -> Footprint:
        """What one row costs: once the budget is full, `nbytes()` is `batch * footprint.bytes_of(budget_tokens)`."""
        per_entry, fixed = 0, _ROW_BYTES + _SPAN_BYTES * max(len(row) for row in self._pins.rows)
        if self.policy.kind == "prompt":
            fixed += _ROW_BYTES  # how long the prompt was
        for layer in (self._layers[index] for index in self.bounded_layers):
            each, once = Evidence.bytes_of(self.policy, layer.facts)
            per_entry += layer.facts.entry_bytes + each
            fixed += once
        for ledger in self._bounded_ledgers():
            per_entry += ledger.heads * _ORIGIN_BYTES
            fixed += ledger.heads * _COUNT_BYTES if ledger.rule.across_heads else 0
        windows = {x.facts.sliding for x in self._layers if x.facts.sliding is not None}
        fixed += sum(
            x.facts.sliding * x.facts.entry_bytes for x in self._layers if x.facts.sliding is not None
        )
        return Footprint(per_entry, fixed + sum(windows) * _ORIGIN_BYTES)

    @property
    def bounded_layers(self) -> list[int]:
        """Indices of the layers that the budget applies to: those without a sliding window of their own."""
        return [layer.facts.index for layer in self._layers if layer.facts.sliding is None]

    def layer(self, index: int) -> BoundedLayer:
        """What `layers[index]` is. Raises `InputError` for a layer that the model does not have."""
        if type(index) is not int or not -len(self._layers) <= index < len(self._layers):
            raise InputError(
                f"layer {index!r}: this model has {len(self._layers)} layers, 0 to {len(self._layers) - 1}"
            )
        return self._layers[index]

    def kept(self, layer: int = 0) -> int:
        """Entries held by the fullest row and head of a layer."""
        origins = self.layer(layer).ledger.origins
        return 0 if origins is None or origins.numel() == 0 else int((origins >= 0).sum(-1).max())

    def origins(self, layer: int = 0) -> Tensor:
        """int64 `[batch, kv_heads, kept]`: each entry's index among its row's real tokens, ascending; -1 (first) is an
        empty slot."""
        facts, held = self.layer(layer).facts, self.layer(layer).ledger.origins
        if held is None:
            return torch.empty(self._stream.batch or 0, facts.kv_heads, 0, dtype=torch.int64)
        return held.long().sort(-1).values.expand(-1, facts.kv_heads, -1)

    def nbytes(self) -> int:
        """Bytes of every storage the cache owns: keys, values, origins, and the few bytes of a row's bookkeeping."""
        storages = {}
        for tensor in self.state().values():
            storage = tensor.untyped_storage()
            storages[storage.data_ptr(), tensor.device] = storage.nbytes()
        return sum(storages.values())

    @property
    def peak_nbytes(self) -> int:
        """The most bytes owned so far, in the midst of a forward included: one layer at a time holds the new tokens on
        top of its budget."""
        return max(self._stream.peak, self.nbytes())

    def audit(self) -> list[HeadAudit]:
        """For each bounded layer and KV head: pins still held, entries kept and evicted, allotment, frame, bytes."""
        return audit(self, self._layers, self._stream)

    def witness(self) -> dict[int, HeadMass]:
        """Let somebody look on: what tokens are paid in each bounded layer from now on, until something is evicted. Attention
        weights are then written out, which a fused kernel does not do."""
        looking: dict[int, HeadMass] = {}
        for index in self.bounded_layers:
            looking[index] = self._layers[index].witness = HeadMass()
        return looking

    def drop(self, indices: Iterable[int]) -> None:
        """Evict the entries of these tokens now, in every row, bounded layer and head, pinned or not: they are forgotten.

        Those not held are left alone. Raises `InputError` where rows or heads hold different numbers of them, `PolicyError`
        under a policy whose visible set follows from indices, which a gap would contradict.
        """
        self._check_usable()
        if self.policy.kind != "scored" and (self.policy.bounded or self.frame == "slots"):
            raise PolicyError(
                f"drop() with policy {self.policy.name!r} in frame {self.frame!r}: what its queries see follows from indices, and "
                "a gap would misplace them; drop from a scored policy's cache, or from 'full' in frame 'original'"
            )
        if self._stream.recording and self._stream.uncommitted:
            raise CacheError(
                f"{self._stream.uncommitted} tokens may still be taken back: crop(0) commits them, then drop"
            )
        wanted = (
            list(indices) if isinstance(indices, Iterable) and not isinstance(indices, str) else [indices]
        )
        if bad := [index for index in wanted if type(index) is not int or not 0 <= index <= _LAST]:
            raise InputError(
                f"drop({bad[0]!r}): give the indices of tokens, a list of whole numbers from 0 up"
            )
        lost = torch.tensor(sorted(set(wanted)), dtype=torch.int32)
        dropped: dict[Ledger, Tensor] = {}
        for ledger in self._bounded_ledgers():
            if ledger.origins is None or ledger.counts is not None:
                raise InputError(
                    f"nothing can be dropped from {self.policy.name!r} now: feed it a text, and drop from a cache whose heads share no budget"
                )
            stays = ~torch.isin(ledger.origins, lost.to(ledger.origins.device))
            held = stays.sum(-1)
            if int(held.min()) != int(held.max()):
                raise InputError(
                    f"rows and heads would hold {int(held.min())} to {int(held.max())} entries: drop tokens that all of them "
                    "hold, or none"
                )
            dropped[ledger] = torch.argsort(stays.to(torch.uint8), dim=-1, stable=True)[
                ..., stays.shape[-1] - int(held.max()) :
            ]
        for index in self.bounded_layers:
            layer = self._layers[index]
            layer.evict(dropped[layer.ledger], empties=self._stream.padded)
        for ledger, slots in dropped.items():
            assert ledger.origins is not None
            ledger.hold(ledger.origins.expand(slots.shape[0], -1, -1).gather(-1, slots), ragged=False)
        self._stream.evicted = True

    @property
    def closed(self) -> bool:
        return not self._leave.alive

    def close(self) -> None:
        """Leave the model; with its last cache closed, the model is exactly as before. Closing twice does no harm."""
        self._leave()

    def __enter__(self) -> "BoundedCache":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> "BoundedCache":
        """A second, independent cache with the same contents on the same model."""
        self._check_usable()
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin._enter_by(self.door.enter_again())
        for name, value in self.__dict__.items():
            if name not in twin.__dict__:
                twin.__dict__[name] = copy.deepcopy(value, memo)
        return twin

    def __reduce__(self) -> Any:
        raise CacheError(
            "a bounded cache is not pickled or copied shallowly: use save() and load(), or copy.deepcopy()"
        )

    def __repr__(self) -> str:
        budget = "unbounded" if self._budget is None else f"budget={self._budget.text}"
        return f"BoundedCache({self.policy.name}, {budget}, sinks={self.sinks}, frame={self.frame}, seen={self.seen})"

    # in a file

    def save(self, path: str | Path) -> None:
        """Write the cache to one safetensors file, atomically: what `load` makes of it continues bit for bit.

        Raises `CacheError` while a rollback is pending (`crop(0)` ends it), `InputError` for a place that
        cannot be written to, `OSError` where writing fails.
        """
        self._check_usable()
        if self._stream.recording and self._stream.uncommitted:
            raise CacheError(
                f"{self._stream.uncommitted} tokens may still be taken back: crop(0) commits them, then save"
            )
        in_order(self._layers)
        snapshot.save(self, path)

    @classmethod
    def load(cls, path: str | Path, model: Any, policy: Policy | None = None) -> "BoundedCache":
        """The cache that `save` wrote, on the same model; `policy` only where it was an object of your own.

        Raises `CacheError`, with the reason, for a file that is torn, changed, of another model or another schema.
        """
        return snapshot.load(path, model, policy)

    def state(self) -> dict[str, Tensor]:
        """Every tensor owned, by a name that says whose it is."""
        named = {f"stream.{name}": x for name, x in self._stream.named_tensors().items()}
        for number, ledger in enumerate(self._ledgers()):
            named |= {f"ledgers.{number}.{name}": x for name, x in ledger.named_tensors().items()}
        for number, layer in enumerate(self._layers):
            named |= {f"layers.{number}.{name}": x for name, x in layer.named_tensors().items()}
        return named

    # one forward, driven by the door

    def begin(self, fed: Tensor, *, mask: Tensor | None, positions: Tensor | None) -> Forward:
        """Take in a forward of `fed [batch, new, …]`. Raises, with nothing changed, where it cannot be honoured."""
        if self._stream.under_way:
            self._broken = True  # the last one never reached the exit: it was interrupted
        self._check_usable()
        if self.door.decoder.dtype != self._precision:
            raise CacheError(
                f"this cache was built for {self._precision} and the model is {self.door.decoder.dtype} now: its "
                "frequencies and bytes are others; build a new BoundedCache(model, …)"
            )
        before, pins_before = copy.copy(self._stream.__dict__), self._pins
        stream = self._stream
        try:
            index = stream.admit(fed.shape[0], fed.shape[1], fed.device, mask)
            self._check_positions(positions, index, before["columns"])
            trained, longest = self.door.anatomy.trained, stream.longest
            if self.door.anatomy.learned and trained is not None and longest > trained:
                raise InputError(
                    f"token {longest} is past the {trained} learned positions of this model: the stream ends there; "
                    "use a model with rotary positions for longer ones"
                )
            begins = not before["columns"]
            looks = begins and self.sinks == "auto" and self._budget is not None
            resolves = begins and self._card is not None
            of_card = self._resolve_card(fed, index) if resolves else []
            if self._budget is not None and (self._tokens is None or resolves) and not looks:
                self._settle_budget(self._prompt_length or longest)
        except BaseException:
            stream.__dict__.update(before)
            self._pins = pins_before
            raise
        if resolves:
            self._note_of_pins(of_card)
        if self.frame == "original" and trained is not None and longest > trained:
            self._note(
                f"original positions run past the {trained} the model was trained on: no verdict can be given"
            )
        if looks:
            self._look_first()
        stream.under_way = True
        return Forward(
            self._layers, stream, index, length=self._length(), nbytes=self.nbytes, done=self._done
        )

    def _resolve_card(self, fed: Tensor, index: Tensor) -> list[str]:
        """Pin what the card's rules say of this prompt; returns its notes. The budget has to be settled after it."""
        assert self._card is not None
        pins, notes = carded.resolve(self._card, self._first, fed, index)
        self._pins = self._stream.pins = pins
        self._stream.spans = pins.tensor(index.shape[0], index.device)
        return notes

    def _note_of_pins(self, notes: list[str]) -> None:
        """These are the notes on what the prompt made of the pins, and none of an earlier prompt's."""
        self.notes = [note for note in self.notes if note not in self._of_pins]
        self._of_pins = [note for note in notes if note not in self.notes]
        self.notes += self._of_pins

    def _check_positions(self, positions: Tensor | None, index: Tensor, held: int) -> None:
        if positions is None:
            return
        right = positions.ndim == 2 and positions.shape[-1] == index.shape[-1]
        if right and bool(((positions.to(index.device) == index) | (index < 0)).all()):
            return
        steps = torch.arange(index.shape[-1], device=positions.device)
        if right and held and bool((positions - positions[:, :1] == steps).all()):
            raise InputError(
                f"position_ids start at {int(positions[0, 0])} although {held} tokens were fed to this cache: it goes on "
                "with its own text, so give generate all of that text with new tokens behind it (or the new ones alone, "
                "with the whole mask), or reset() the cache for another text"
            )
        raise InputError(
            "custom position_ids: a bounded cache derives every position from what it was fed and would ignore them; "
            "leave them out"
        )

    def _done(self, complete: bool) -> None:
        self._stream.under_way = False
        if self._looking is not None:
            if complete:
                self._pin_what_was_found()
            else:
                self._stop_looking()
        if not self._stream.recording:
            self._stream.uncommitted = 0
            self._stream.settled()
        if not complete:
            self._broken = True

    def _check_usable(self) -> None:
        if self.closed:
            raise CacheError("this cache is closed: build a new BoundedCache(model, …)")
        if self._broken:
            raise CacheError(
                "an earlier forward stopped midway, so that some layers hold tokens others do not: reset() this cache "
                "and feed the text again, or build a new one"
            )

    # transformers' cache protocol

    @property
    def _is_user_defined(self) -> bool:
        return True

    @_is_user_defined.setter
    def _is_user_defined(self, value: bool) -> None:
        # `generate` sets this mark when it starts. Recording that an earlier, assisted call switched on ends here:
        # an ordinary call never crops, and would otherwise grow without bound.
        if self._stream.recording:
            self.crop(0)
            self._stream.recording = False

    @property
    def is_croppable(self) -> bool:
        return self._stream.recording or not (self._stream.evicted or self._stream.remembers)

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Entries held: what a mask's queries come after. (`get_seq_length` is what was seen.)"""
        return self._layers[layer_idx].ledger.kept

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the newest `-tokens_to_remove` columns, and commit the rest where `activate_past_recording` waits.

        Raises `InputError` for a positive count (transformers: a `ValueError`, which that is), `CacheError` where entries would be missing:
        once anything has been evicted, only what was fed while recording can be taken back.
        """
        self._check_usable()
        stream = self._stream
        if tokens_to_remove > 0:
            raise InputError(
                f"crop({tokens_to_remove}): give a negative count of tokens to remove from the end"
            )
        in_order(self._layers)
        remove = -tokens_to_remove
        if remove > stream.columns:
            raise CacheError(f"cannot crop {remove} tokens: only {stream.columns} were fed")
        if remove > stream.croppable:
            why = "entries have been evicted" if stream.evicted else "attention has been counted as evidence"
            raise CacheError(
                f"cannot crop {remove} of {stream.columns} tokens: {why}, and only {stream.croppable} can be taken back; "
                "call activate_past_recording() before the forward, or reset() and feed again"
            )
        if remove:
            stream.withdraw(remove)
            for layer in self._layers:
                layer.trim(remove)
            for ledger in self._ledgers():
                ledger.trim(remove)
        if stream.columns:
            self._commit()
        else:  # all of it was taken back: nothing is held, and nothing was evicted
            self._empty()
            stream.uncommitted, stream.evicted = 0, False

    def _commit(self) -> None:
        """Count and evict what waited for a crop."""
        stream = self._stream
        waited, stream.uncommitted = stream.uncommitted, 0
        if stream.spans is None or stream.real is None:
            return
        nothing = stream.real.new_empty(stream.real.shape[0], 0)
        decided: dict[Ledger, tuple[Tensor, Tensor | None]] = {}
        for layer in self._layers:
            ledger = layer.ledger
            if ledger.counts is not None:  # packed, so nothing came in since it last chose
                continue
            if ledger not in decided:
                plan = Plan(ledger, nothing, stream.spans, stream.padded, waited)
                decided[ledger] = plan.pool, layer.choose(plan, stream, self._length())
            slots = decided[ledger][1]
            layer.evict(slots, empties=stream.padded)
            stream.evicted |= slots is not None
        for ledger, (pool, slots) in decided.items():
            ledger.hold(held(pool, slots), ragged=slots is not None and ledger.rule.across_heads)
        stream.settled()

    def _length(self) -> int:
        """The text length that rotary frequencies are for: bounded where positions are ranks."""
        return self._tokens if self.frame == "slots" and self._tokens is not None else self._stream.longest

    def reset(self) -> None:
        """Forget everything; the cache is as new, and may be given another batch size."""
        if self.closed:
            self._check_usable()
        self._empty()
        self._stream.clear()
        self._broken = False
        looks = self._budget is not None and self.sinks == "auto"
        if looks or (
            self._budget is not None and self._budget.kind == "share" and self._prompt_length is None
        ):
            self._tokens = None
            self.notes = [note for note in self.notes if note not in self._of_budget]
        if looks or self._card is not None:
            self._pins = self._stream.pins = self._pins_at_first
            self._note_of_pins([])
            if self._tokens is not None:
                self._settle_budget(self._prompt_length)

    def _empty(self) -> None:
        for layer in self._layers:
            layer.clear()
        for ledger in self._ledgers():
            ledger.clear()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Rows become `beam_idx [batch]` of the present ones: keys, values, origins, counts and pins together."""
        self._check_usable()
        self._stream.select_rows(beam_idx)
        for layer in self._layers:
            layer.select_rows(beam_idx)
        for ledger in self._ledgers():
            ledger.select_rows(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the rows `indices` (or those where a boolean mask holds)."""
        self.reorder_cache(indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times, side by side."""
        if (batch := self._stream.batch) is not None:
            self.reorder_cache(torch.arange(batch).repeat_interleave(repeats))


def _checked_window(policy: Policy, room: int) -> int:
    """`policy.window(room)`. Raises `PolicyError` for one that the evidence or a prompt's choice cannot be taken with."""
    window: object = policy.window(room)
    least = 1 if "recent" in policy.needs else 0
    if type(window) is not int or window < least:
        raise PolicyError(
            f"policy {policy.name!r} has a window of {window!r} in room for {room} entries beside the pins: it must be a "
            f"whole number, {least} or more; correct its window(room)"
        )
    if policy.kind == "prompt" and window > room:
        raise PolicyError(
            f"policy {policy.name!r} has a window of {window}, all of which stays, in room for {room} entries beside the "
            "pins: correct its window(room), or raise the budget"
        )
    return window


def _checked_budget(policy: Policy, budget: int | str | Budget | None, sinks: object) -> Budget | None:
    if not policy.bounded:
        if budget is not None:
            raise BudgetError(
                f"budget {budget!r} with policy {policy.name!r}, which keeps everything: leave it out"
            )
        return None
    if budget is None:
        raise BudgetError(
            f"policy {policy.name!r} needs a budget: tokens (1024), a share (25%) or bytes (64MiB)"
        )
    if isinstance(sinks, int) and sinks < policy.min_sinks:
        raise PolicyError(
            f"policy {policy.name!r} with sinks={sinks}: it pins at least {policy.min_sinks}; policy='window' has none"
        )
    return Budget.parse(budget)
