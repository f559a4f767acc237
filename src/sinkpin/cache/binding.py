"""How a cache meets a model: a door on its decoder, and one attention function behind it.

Each forward of a bound decoder passes the door, a forward pre-hook. If it carries one of our caches, the door takes
the mask and the positions off it (at position 0 every rotary is the identity, so queries and keys arrive unrotated),
switches the decoder to our attention function, and switches back at the exit. With any other cache, or none, it does
nothing. When the last cache of a model is closed, the door is taken down and the model is as it was.

The layers' attention modules find their door in a table, so nothing is written onto the model. A forward in another
thread with another cache meets our function only to be passed on to the one it asked for.
"""

import threading
import weakref
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sinkpin.cache import adapters, anatomy, compat, generation, switch
from sinkpin.cache.forward import Forward
from sinkpin.errors import CacheError, InputError

_doors: "weakref.WeakKeyDictionary[nn.Module, Door]" = weakref.WeakKeyDictionary()
"""Decoders and their attention modules -> the door that is up on them."""
_lock = threading.RLock()
_here = threading.local()
"""Of each thread, `guests`: the doors whose decoder is in a forward of ours -> that forward."""


def _guests() -> "dict[Door, _Guest]":
    if not hasattr(_here, "guests"):
        _here.guests = {}
    guests: dict[Door, _Guest] = _here.guests
    return guests


class _Guest(Protocol):
    """What our attention function hands a layer's tensors to: a forward of a bounded cache, or a probe."""

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, **given: Any
    ) -> tuple[Tensor, None]: ...


class Door:
    """The hooks on one decoder, and what is known of it. Held by every open cache of that model."""

    def __init__(self, decoder: nn.Module, config: Any) -> None:
        self.decoder = decoder
        self.config = config
        self._open = 0
        self._configs = [config]
        compat.register(_attention, _mask)
        with _lock:
            _doors[decoder] = self
        self._adapters: list[adapters.Adapter] = []
        self._watches: list[generation.Watch] = []
        try:
            self._adapters = adapters.adapt(decoder, _attention, _inside)
            self._examine()
        except BaseException:
            self._forget()
            raise
        self._hooks = [
            decoder.register_forward_pre_hook(self._enter, with_kwargs=True),
            decoder.register_forward_hook(self._exit, with_kwargs=True, always_call=True),
        ]

    @classmethod
    def on(cls, model: Any) -> "Door":
        """The door on a model's decoder, hung if there is none yet. Every call is answered by one `leave()`."""
        inner = compat.causal_lm(model)
        decoder = compat.decoder_of(inner)
        with _lock:
            door = _doors.get(decoder) or cls(decoder, decoder.config)
            if door.precision != inner.dtype:  # the model was converted since: its bytes are others now
                door._examine()
            door._open += 1
            door._watch(inner)
            return door

    def enter_again(self) -> "Door":
        """Count one more cache, for a copy of one."""
        with _lock:
            self._open += 1
            return self

    def leave(self) -> None:
        """One cache fewer; with the last one the model is exactly as before."""
        with _lock:
            self._open -= 1
            if self._open == 0:
                for hook in self._hooks:
                    hook.remove()
                self._depart()
                self._forget()

    @property
    def guest(self) -> _Guest | None:
        """Whose forward is under way in this thread, if it is one of ours."""
        return _guests().get(self)

    @torch.compiler.disable  # a graph break: hooks change Python state that a compiled graph would freeze
    def _enter(
        self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        from sinkpin.cache.bounded import BoundedCache

        if _doors.get(decoder) is not self:  # a copy of the model came with a copy of its hooks
            return None
        guest = self.guest
        if isinstance(guest, anatomy.Probe):  # our own look at a decoder whose door is up already
            return None
        if guest is not None:  # the last forward of this thread was interrupted and never reached the exit
            self._depart()
        cache = compat.cache_argument(decoder, args, kwargs)
        if not isinstance(cache, BoundedCache):
            return None
        if cache.door is not self:
            raise CacheError(
                "this cache was built for another model, whose keys mean nothing here: build one with "
                "BoundedCache(this_model, …)"
            )
        kwargs = compat.by_keyword(decoder, args, kwargs)
        _refuse(kwargs, self.config)
        fed = kwargs["input_ids"] if kwargs.get("input_ids") is not None else kwargs["inputs_embeds"]
        forward = cache.begin(fed, mask=kwargs.get("attention_mask"), positions=kwargs.get("position_ids"))
        # Decoders of inline attention make biases as long as their mask, or as all that was seen: let them be short.
        kwargs["attention_mask"] = (
            fed.new_ones((fed.shape[0], 1), dtype=torch.long) if self._adapters else None
        )
        # At position 0 a rotary is the identity; learned positions are added to the tokens and stay as they are.
        index = forward.index
        kwargs["position_ids"] = index.clamp(min=0) if self.anatomy.learned else torch.zeros_like(index[:1])
        self._host(forward)
        return (), kwargs

    @torch.compiler.disable
    def _exit(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        forward = self.guest
        if isinstance(forward, Forward):
            self._depart()
            forward.finish(failed=output is None)

    def _host(self, guest: _Guest) -> None:
        """This thread is inside: its attention is ours until it departs."""
        _guests()[self] = guest
        switch.turn(self._configs, (self, threading.get_ident()))

    def _depart(self) -> None:
        _guests().pop(self, None)
        switch.release(self._configs, (self, threading.get_ident()))

    def _examine(self) -> None:
        """Find out what the decoder's layers are, as it stands now."""
        probe = anatomy.Probe()
        found = anatomy.examine(self.decoder, self.config, probe, lambda ids, at: self._probe(probe, ids, at))
        notes = {adapter.note: None for adapter in self._adapters if adapter.note is not None}
        self.anatomy = replace(found, notes=tuple(notes))
        self._attentions = {index: weakref.ref(module) for index, module in probe.modules.items()}
        self.precision = self.decoder.dtype

    def attention(self, layer: int) -> nn.Module:
        """The module that computes a layer's attention."""
        module = self._attentions[layer]()
        assert module is not None, "a door does not outlive its decoder"
        return module

    def _probe(self, probe: anatomy.Probe, ids: Tensor, positions: Tensor) -> None:
        """One forward of the decoder in which `probe` stands in for attention."""
        for module in self.decoder.modules():
            if (config := getattr(module, "config", None)) is not None and not any(
                config is c for c in self._configs
            ):
                self._configs.append(config)
            if isinstance(getattr(module, "layer_idx", None), int):
                _doors[module] = self
        self._host(probe)
        try:
            cache = {compat.CACHE_KEYWORD: probe.cache}
            self.decoder(input_ids=ids, position_ids=positions, use_cache=True, **cache)
        finally:
            self._depart()

    def _watch(self, model: Any) -> None:
        """Keep `generate` of this model from dropping a cache of ours, or from feeding it twice."""
        from sinkpin.cache.bounded import BoundedCache

        if not any(watch.model is model for watch in self._watches):
            ours = lambda cache: isinstance(cache, BoundedCache)  # noqa: E731
            if (found := generation.watch(model, self.decoder, ours)) is not None:
                self._watches.append(found)

    def _forget(self) -> None:
        for adapter in self._adapters:
            adapter.restore()
        for watch in self._watches:
            watch.restore()
        with _lock:
            for module in [m for m, door in _doors.items() if door is self]:
                del _doors[module]


def _refuse(kwargs: dict[str, Any], config: Any) -> None:
    """Raise `InputError` for arguments of a forward that a bounded cache cannot honour."""
    fed = kwargs.get("input_ids") if kwargs.get("input_ids") is not None else kwargs.get("inputs_embeds")
    if not isinstance(fed, Tensor) or fed.shape[1] == 0:
        raise InputError(
            "a forward with no new token: give at least one; where generate was given no more than the cache has seen, append "
            "to that text, or reset() the cache for another"
        )
    if kwargs.get("use_cache") is False:
        raise InputError(
            "use_cache=False with a bounded cache: generate would feed the whole text again at every step; set "
            "use_cache=True (model.generation_config.use_cache, which MPT has off by default)"
        )
    if kwargs.get("output_attentions") or getattr(config, "output_attentions", False):
        raise InputError(
            "output_attentions=True: a bounded cache makes no full attention matrix; leave it off"
        )
    mask = kwargs.get("attention_mask")
    if mask is not None and (not isinstance(mask, Tensor) or mask.ndim != 2):
        what = f"{mask.ndim}-D" if isinstance(mask, Tensor) else f"a {type(mask).__name__}"
        raise InputError(
            f"attention_mask is {what}: a bounded cache makes its own; give the 2-D padding mask or none"
        )


def _attention(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any = None, **given: Any) -> Any:
    """Registered with transformers as the attention function `sinkpin`."""
    if torch.compiler.is_compiling():
        told = (given.get(name) for name in ("scaling", "softcap", "slopes", "s_aux"))
        return _compiled_attention(q, k, v, module.layer_idx, *told), None
    return _attend(module, q, k, v, mask, given)


@torch.library.custom_op("sinkpin::attention", mutates_args=())
def _compiled_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer: int,
    scaling: float | None,
    softcap: float | None,
    slopes: Tensor | None,
    s_aux: Tensor | None,
) -> Tensor:
    """The same inside a compiled graph, which sees one opaque operation: what a cache holds is not the graph's business,
    so that a step neither breaks it nor makes it anew."""
    inside = [(door, guest) for door, guest in _guests().items() if isinstance(guest, Forward)]
    if len(inside) != 1:
        raise CacheError(
            f"compiled attention inside {len(inside)} forwards of bounded caches: it belongs in exactly one; call the "
            "model with cache=BoundedCache(model, …), one model at a time"
        )
    [(door, forward)] = inside
    told = {"scaling": scaling, "softcap": softcap, "slopes": slopes, "s_aux": s_aux}
    return forward.attend_in_graph(layer, q, k, v, **_as_before(door, told))


@_compiled_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3])


@torch.compiler.disable
def _attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, given: dict[str, Any]) -> Any:
    door = _doors.get(module)
    guest = None if door is None else door.guest
    if guest is None:
        function = compat.attention_function(module, switch.before(module.config))
        return function(module, q, k, v, mask, **given)
    return guest.attend(module, q, k, v, **_as_before(module, given))


def _as_before(holder: Any, given: dict[str, Any]) -> dict[str, Any]:
    """transformers' sdpa leaves the soft cap out (later versions keep Gemma 2 from using it), and below its budget a
    cache must not change what a model says."""
    if given.get("softcap") is not None and switch.before(holder.config) == "sdpa":
        return {**given, "softcap": None}
    return given


def _inside(module: nn.Module) -> bool:
    """Whether a forward of ours is under way around this attention module."""
    door = _doors.get(module)
    return door is not None and door.guest is not None


@torch.compiler.disable
def _mask(*args: Any, **kwargs: Any) -> Any:
    """Registered as the mask function `sinkpin`: none for our forwards, whose visible set is not a mask's business."""
    config = kwargs.get("config")
    for door, guest in _guests().items():
        if any(config is c for c in door._configs) and not (isinstance(guest, Forward) and guest.has_begun):
            # (A decoder asks for its masks before its first layer. Whoever asks later is another, called from within.)
            if isinstance(guest, anatomy.Probe) and kwargs.get("mask_function") is not None:
                guest.masks.append(kwargs["mask_function"])
            # Adapted modules ignore it too, but MPT's decoder converts whatever it gets.
            return torch.zeros(0, dtype=torch.bool) if door._adapters else None
    function = compat.mask_function(switch.before(config))
    return None if function is None else function(*args, **kwargs)
