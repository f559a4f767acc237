"""Families whose attention modules compute attention inline, past transformers' attention interface.

While a door is up, `forward` of each such module is replaced, on that instance alone, by one that makes queries, keys
and values just as the module does and hands them to our attention function. Outside a forward of ours it runs the
model's own code. Nothing happens at import, and `restore` leaves every instance as it was found.

A family is one file and one line in `_FAMILIES`; the file has `slopes(module)`, the ALiBi slopes `[heads]` that the
model itself uses or None, `attend(module, attention, hidden_states, …)`, which takes the arguments of the module's own
forward, and perhaps `note(module)`, where ours differs from it. Not covered: subclasses and remote code of the same names, whose forward may differ; the probe refuses
those.
"""

import copy
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from sinkpin.cache import compat, switch

_FAMILIES = {
    ("transformers.models.falcon.modeling_falcon", "FalconAttention"): "falcon",
    ("transformers.models.falcon.modeling_falcon", "FalconFlashAttention2"): "falcon",
    ("transformers.models.mpt.modeling_mpt", "MptAttention"): "mpt",
    ("transformers.models.bloom.modeling_bloom", "BloomAttention"): "bloom",
}

Attention = Callable[..., tuple[Tensor, Any]]
"""Like an attention function of transformers, without the module: `(q, k, v, scaling=…, slopes=…)`."""


class Adapter:
    """Stands in for the `forward` of one attention module. `inside(module)`: whether a forward of ours is under way."""

    def __init__(
        self,
        module: nn.Module,
        family: str,
        attention: Callable[..., Any],
        inside: Callable[[nn.Module], bool],
    ) -> None:
        code = import_module(f"{__name__}.{family}")
        self.module, self.attention, self.inside = module, attention, inside
        self.attend: Callable[..., Any] = code.attend
        self.slopes: Tensor | None = code.slopes(module)
        self.note: str | None = code.note(module) if hasattr(code, "note") else None
        # accelerate has put its own forward in place and calls the module's through this name
        self.name = "_old_forward" if "_old_forward" in module.__dict__ else "forward"
        self.found = module.__dict__.get(self.name)
        self.own: Callable[..., Any] = getattr(module, self.name)
        module.__dict__[self.name] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.inside(self.module):
            return self._as_configured()(*args, **kwargs)
        return self.attend(self.module, self._attention, *args, **kwargs)

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Any:
        if self.slopes is not None:
            given["slopes"] = self.slopes = self.slopes.to(q.device)
        return self.attention(self.module, q, k, v, None, **given)

    def _as_configured(self) -> Callable[..., Any]:
        """The module's own forward. Falcon's looks up how the configuration wants attention computed, and while another
        thread is inside, that names us: so it runs on a stand-in whose configuration says what it said before."""
        config, method = getattr(self.module, "config", None), getattr(self.own, "__func__", None)
        if config is None or method is None or compat.get_implementation(config) != compat.IMPLEMENTATION:
            return self.own
        stand_in: Any = copy.copy(self.module)
        stand_in.config = copy.copy(config)
        compat.set_implementation(stand_in.config, switch.before(config))
        return partial(method, stand_in)

    def restore(self) -> None:
        """The module as it was found, unless someone else has replaced its forward since."""
        if self.module.__dict__.get(self.name) is self:
            if self.found is None:
                del self.module.__dict__[self.name]
            else:
                self.module.__dict__[self.name] = self.found


def adapt(
    decoder: nn.Module, attention: Callable[..., Any], inside: Callable[[nn.Module], bool]
) -> list[Adapter]:
    """Adapt every module of the decoder that needs it. Raises `ModelError` where a family cannot be adapted as set."""
    adapters: list[Adapter] = []
    try:
        for module in decoder.modules():
            family = _FAMILIES.get((type(module).__module__, type(module).__name__))
            if family is not None:
                adapters.append(Adapter(module, family, attention, inside))
    except BaseException:
        for adapter in adapters:
            adapter.restore()
        raise
    return adapters
