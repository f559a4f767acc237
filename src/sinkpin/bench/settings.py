"""What each verb can be told, and what it does when it is told nothing: the command line reads these classes.

Needs no torch, so that `--help` answers at once. Not here: how an option is written (`cli.bench`).
"""

from dataclasses import dataclass, field, fields
from typing import Any

from sinkpin.errors import InputError


def option(default: Any, says: str, *, least: int | None = None) -> Any:
    """A field with what `--help` says of it, and the least number it may be."""
    return field(default=default, metadata={"says": says, "least": least})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every verb takes."""

    entries: int = option(1024, "KV entries a bounded cache holds, pins included", least=2)
    sinks: int = option(4, "first tokens that are pinned", least=0)
    seed: int = option(0, "of torch's generator; recorded", least=0)

    def __post_init__(self) -> None:
        for each in fields(self):
            value, least = getattr(self, each.name), each.metadata["least"]
            for number in value if isinstance(value, tuple) else (value,):
                if least is not None and isinstance(number, int) and number < least:
                    raise InputError(f"--{each.name.replace('_', '-')} {number}: give {least} or more")
        if self.entries <= self.sinks:
            raise InputError(
                f"--entries {self.entries} with --sinks {self.sinks}: nothing but the pins would be held; "
                f"give at least {self.sinks + 1} entries"
            )


@dataclass(frozen=True, kw_only=True)
class Decode(Settings):
    """One token a forward, with `entries` held."""

    policy: tuple[str, ...] = option(
        ("streaming", "h2o@original", "h2o@slots", "tova"), "what is compared with DynamicCache"
    )
    batch: tuple[int, ...] = option((1,), "rows fed together; with several, also what a batch gains", least=1)
    repeats: int = option(200, "steps of each arm, in turns", least=1)
    warmup: int = option(10, "steps of each arm that are not counted", least=1)
    compile: bool = option(False, "also each arm under torch.compile, with recompiles counted")
    backend: str = option("inductor", "torch.compile's")
    recompute: bool = option(True, "the recompute arm: the last entries fed anew for a token")
    recompute_repeats: int = option(3, "tokens for which the recompute arm is run", least=1)


@dataclass(frozen=True, kw_only=True)
class Prefill(Settings):
    """A prompt, without decoding."""

    policy: tuple[str, ...] = option(("streaming", "snapkv", "h2o"), "what is compared with DynamicCache")
    tokens: tuple[int, ...] = option((4096, 8192, 32768), "lengths of the prompt", least=2)
    quadratic: int = option(
        8192, "longest prompt for arms whose cost grows with its square; the others go on alone", least=1
    )
    chunk: int = option(0, "tokens a forward; 0 is the whole prompt, where memory allows", least=0)
    repeats: int = option(3, "prompts of each arm and length, in turns", least=1)


@dataclass(frozen=True, kw_only=True)
class Memory(Settings):
    """What stays and what is needed on the way."""

    policy: tuple[str, ...] = option(("streaming", "h2o"), "what is measured")
    tokens: int = option(20_000, "tokens fed once the budget is full", least=10)
    step: int = option(16, "tokens a forward once the budget is full", least=1)
    prefill: int = option(32_768, "length of the prompt whose peak is measured", least=2)
    chunk: int = option(512, "tokens a forward of a prompt", least=1)


@dataclass(frozen=True, kw_only=True)
class Perplexity(Settings):
    """Exact streaming perplexity, by chunks and token by token."""

    tokens: int = option(16_384, "length of the text", least=2)
    loop_tokens: int = option(4096, "how many of its tokens the token-by-token loops read", least=2)
    chunk: int = option(512, "tokens a forward; the result does not depend on it", least=2)


@dataclass(frozen=True, kw_only=True)
class Stream(Settings):
    """A text without end, block by block."""

    policy: tuple[str, ...] = option(("streaming",), "the one that is run")
    tokens: int = option(1_000_000, "how many are fed; the texts are repeated in order", least=2)
    block: int = option(50_000, "tokens a line of the result", least=2)
    chunk: int = option(512, "tokens a forward; part of the result of a policy that chooses", least=1)
    out: str = option("sinkpin-stream", "folder for the blocks, the saved cache and the picture")
    resume: bool = option(False, "continue the run in that folder")


VERBS: dict[str, type[Settings]] = {
    "decode": Decode,
    "prefill": Prefill,
    "memory": Memory,
    "perplexity": Perplexity,
    "stream": Stream,
}


def as_json(settings: Settings) -> dict[str, Any]:
    """For the record; tuples as JSON has them."""
    values = {each.name: getattr(settings, each.name) for each in fields(settings)}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
