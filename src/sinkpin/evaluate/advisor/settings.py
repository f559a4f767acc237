"""A setting: what one cache would be run with, and how it is written for Python, for `sinkpin serve` and in JSON.

Beside the first tokens a setting may pin spans that differ from text to text: the system prompt of a chat, or what a sink
card's rules find. Not here: which settings are tried (`workloads`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from sinkpin.evaluate.arms import Arm
from sinkpin.policies import parse
from sinkpin.spans import Span

Pins = Literal["system", "card"]


@dataclass(frozen=True)
class Setting:
    """An arm whose budget is in tokens, and the kind of spans that it pins on top of its `sinks`, if any."""

    arm: Arm
    pins: Pins | None = None

    @property
    def name(self) -> str:
        """That of its arm, with the kind of its further pins: `h2o-512+4+system`."""
        name, slash, frame = self.arm.name.partition("/")
        return f"{name}+{self.pins}{slash}{frame}" if self.pins else self.arm.name

    @property
    def budget(self) -> int:
        assert isinstance(self.arm.budget, int)
        return self.arm.budget

    def with_budget(self, tokens: int) -> "Setting":
        return replace(self, arm=replace(self.arm, budget=tokens))

    def on(self, spans: Mapping[str, tuple[Span, ...]]) -> Arm:
        """The arm for one text, in which each kind of pins is these spans."""
        return self.arm if self.pins is None else replace(self.arm, pins=spans.get(self.pins, ()))

    @property
    def written_policy(self) -> str:
        """`name:option=value,…`"""
        options = ",".join(f"{key}={value}" for key, value in self.arm.options.items())
        return f"{self.arm.policy}:{options}" if options else self.arm.policy

    def as_python(self, spans: Sequence[Span], card: str | None = None) -> str:
        """One call. `spans`: those of the prompt it was measured with; `card`: the file of the sink card."""
        given = [f"budget={self.budget}", f"policy={self.written_policy!r}", f"sinks={self.arm.sinks}"]
        if self.pins == "card":
            given.append(f"pins={card!r}")
        elif self.pins == "system":
            given.append(f"pins={[tuple(span) for span in spans]}")
        if self.arm.frame:
            given.append(f"frame={self.arm.frame!r}")
        return f"cache = sinkpin.BoundedCache(model, {', '.join(given)})"

    def as_flags(self, card: str | None = None) -> str:
        """What `sinkpin serve` is given; it pins system prompts by itself."""
        flags = f"--policy {self.written_policy} --budget {self.budget} --sinks {self.arm.sinks}"
        if self.pins == "card":
            flags += f" --pins {card}"
        return f"{flags} --frame {self.arm.frame}" if self.arm.frame else flags

    def to_json(self) -> dict[str, Any]:
        return {
            "policy": self.arm.policy,
            "options": dict(self.arm.options),
            "budget": self.budget,
            "sinks": self.arm.sinks,
            "pins": self.pins,
            "frame": self.arm.frame,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Setting":
        """Raises `SinkpinError` for a policy, budget or number of sinks that there is not."""
        arm = Arm(
            document["policy"],
            budget=document["budget"],
            sinks=document["sinks"],
            frame=document["frame"],
            options=document["options"],
        )
        return cls(arm, cast("Pins | None", document["pins"]))


def setting(
    written: str, sinks: int, frame: Literal["slots", "original"] | None, pins: Pins | None
) -> Setting:
    """A setting of the policy `name:option=value,…`, with a budget to be replaced (`with_budget`). A window with sinks is
    StreamingLLM's, and is called so."""
    name, options = parse(written)
    called = "streaming" if name == "window" and sinks else name
    return Setting(Arm(called, budget=1 << 30, sinks=sinks, frame=frame, options=options), pins)
