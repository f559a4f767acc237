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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sinkpin.cache import anatomy, compat
from sinkpin.errors import CacheError, InputError

_doors: "weakref.WeakKeyDictionary[nn.Module, Door]" = weakref.WeakKeyDictionary()
"""Decoders and their attention modules -> the door that is up on them."""
_lock = threading.RLock()


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
        self._inside: set[int] = set()
        self._local = threading.local()
        self._originals: list[tuple[Any, str | None]] = []
        self._configs = [config]
        compat.register(_attention, _mask)
        probe = anatomy.Probe()
        _doors[decoder] = self
        try:
            self.anatomy = anatomy.examine(
                decoder, config, probe, lambda ids, at: self._probe(probe, ids, at)
            )
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
            door._open += 1
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
                self._inside.clear()
                self._depart()
                self._forget()

    @property
    def guest(self) -> _Guest | None:
        """Whose forward is under way in this thread, if it is one of ours."""
        guest: _Guest | None = getattr(self._local, "guest", None)
        return guest

    def implementation(self) -> str | None:
        """What the model computes attention with when it is not ours."""
        return self._originals[0][1] if self._originals else compat.get_implementation(self.config)

    @torch.compiler.disable  # a graph break: hooks change Python state that a compiled graph would freeze
    def _enter(
        self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        from sinkpin.cache.bounded import BoundedCache

        if (
            self.guest is not None
        ):  # the last forward of this thread was interrupted before it reached the exit
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
        kwargs["attention_mask"] = None
        # At position 0 a rotary is the identity; learned positions are added to the tokens and stay as they are.
        index = forward.index
        kwargs["position_ids"] = index.clamp(min=0) if self.anatomy.learned else torch.zeros_like(index[:1])
        self._local.guest = forward
        self._switch()
        return (), kwargs

    @torch.compiler.disable
    def _exit(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.guest is not None:
            forward = self._local.guest
            self._depart()
            forward.finish(failed=output is None)

    def _switch(self) -> None:
        with _lock:
            self._inside.add(threading.get_ident())
            if not self._originals:
                self._originals = [(c, compat.get_implementation(c)) for c in self._configs]
                for config in self._configs:
                    compat.set_implementation(config, compat.IMPLEMENTATION)

    def _depart(self) -> None:
        """This thread is not inside any more; the last one out switches back."""
        self._local.guest = None
        with _lock:
            self._inside.discard(threading.get_ident())
            if not self._inside:
                for config, name in self._originals:
                    compat.set_implementation(config, name)
                self._originals = []

    @contextmanager
    def _hosting(self, guest: _Guest) -> Iterator[None]:
        self._local.guest = guest
        self._switch()
        try:
            yield
        finally:
            self._depart()

    def _probe(self, probe: anatomy.Probe, ids: Tensor, positions: Tensor) -> None:
        """One forward of the decoder in which `probe` stands in for attention."""
        for module in self.decoder.modules():
            if (config := getattr(module, "config", None)) is not None and not any(
                config is c for c in self._configs
            ):
                self._configs.append(config)
            if isinstance(getattr(module, "layer_idx", None), int):
                _doors[module] = self
        with self._hosting(probe):
            self.decoder(input_ids=ids, position_ids=positions, use_cache=False)

    def _forget(self) -> None:
        for module in [m for m, door in _doors.items() if door is self]:
            del _doors[module]


def _refuse(kwargs: dict[str, Any], config: Any) -> None:
    """Raise `InputError` for arguments of a forward that a bounded cache cannot honour."""
    fed = kwargs.get("input_ids") if kwargs.get("input_ids") is not None else kwargs.get("inputs_embeds")
    if not isinstance(fed, Tensor) or fed.shape[1] == 0:
        raise InputError(
            "a forward with no new token: give at least one (was all of it in the cache already?)"
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


@torch.compiler.disable
def _attention(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any = None, **given: Any) -> Any:
    """Registered with transformers as the attention function `sinkpin`."""
    door = _doors.get(module)
    guest = None if door is None else door.guest
    if guest is None:
        implementation = None if door is None else door.implementation()
        return compat.attention_function(module, implementation)(module, q, k, v, mask, **given)
    return guest.attend(module, q, k, v, **given)


@torch.compiler.disable
def _mask(*args: Any, **kwargs: Any) -> Any:
    """Registered as the mask function `sinkpin`: none for our forwards, whose visible set is not a mask's business."""
    config = kwargs.get("config")
    for door in set(_doors.values()):
        if any(config is c for c in door._configs):
            if door.guest is not None:
                return None
            function = compat.mask_function(door.implementation())
            return None if function is None else function(*args, **kwargs)
    return None
