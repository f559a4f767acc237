"""Where `generate` itself would drop the cache it was given, or feed a text twice, and how it is kept from doing so.

Phi-3 and its relatives have short and long rotary frequencies, and their `prepare_inputs_for_generation` throws the
cache away when a text grows past the original length, to compute it again: with another, unbounded one. (They do so
even where the configuration has no long frequencies.) Forwards outside `generate` are not affected: a bounded cache
keeps one set of frequencies.

A prompt that the cache already holds in full is fed again, all of it (`[:, -0:]`). The door sees that by the positions
which `generate` passes; BLOOM and MPT take none.

For those models, while a door is up, that method is watched on the instance, and raises in its place.
"""

import inspect
from collections.abc import Callable
from typing import Any

from sinkpin.cache import compat
from sinkpin.errors import InputError

_METHOD = "prepare_inputs_for_generation"


class Watch:
    """Stands in for `prepare_inputs_for_generation` of one model. `ours(cache)`: whether a cache is bounded. `limit`:
    the text length past which the model drops a cache, if it does."""

    def __init__(self, model: Any, limit: int | None, ours: Callable[[Any], bool]) -> None:
        self.model, self.limit, self.ours = model, limit, ours
        self.found = model.__dict__.get(_METHOD)
        self.own: Callable[..., Any] = getattr(model, _METHOD)
        model.__dict__[_METHOD] = self

    def __call__(self, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        cache = compat.cache_argument(self.model, (), kwargs)
        if self.ours(cache):
            self._check(input_ids.shape[1], cache.get_seq_length(), kwargs.get("inputs_embeds") is None)
        return self.own(input_ids, *args, **kwargs)

    def _check(self, tokens: int, seen: int, all_are_ids: bool) -> None:
        if self.limit is not None and tokens > self.limit >= seen:
            raise InputError(
                f"generate at {tokens} tokens: past {self.limit} {type(self.model).__name__} drops the cache it was given "
                "and goes on unbounded; feed the text with model(…) in chunks until the cache has seen more than that, "
                "or stay below"
            )
        if all_are_ids and 0 < seen >= tokens:
            raise InputError(
                f"the cache has seen {seen} tokens and generate was given {tokens}: they would be fed a second time; "
                "append at least one new token, or reset() the cache"
            )

    def restore(self) -> None:
        """The model as it was found, unless someone else has replaced the method since."""
        if self.model.__dict__.get(_METHOD) is self:
            if self.found is None:
                del self.model.__dict__[_METHOD]
            else:
                self.model.__dict__[_METHOD] = self.found


def watch(model: Any, decoder: Any, ours: Callable[[Any], bool]) -> Watch | None:
    """Watch `generate` of a model that needs it."""
    if not hasattr(model, _METHOD):  # a model without a head: nothing generates
        return None
    limit = _limit(model)
    if limit is None and "position_ids" in inspect.signature(decoder.forward).parameters:
        return None
    return Watch(model, limit, ours)


def _limit(model: Any) -> int | None:
    code = getattr(inspect.unwrap(getattr(type(model), _METHOD)), "__code__", None)
    if code is None or "original_max_position_embeddings" not in (*code.co_names, *code.co_consts):
        return None
    original: int | None = getattr(model.config, "original_max_position_embeddings", None)
    return original
