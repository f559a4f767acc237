"""How much a cache may hold: tokens, a share of the prompt, or bytes; and what each of those is in the others.

A budget counts KV entries, pins included: on average that many per bounded layer and KV head after any forward.
`Budget` is what the user wrote; `Footprint` is what one entry costs on one model, so that bytes and tokens convert
exactly. Not covered: which entries fill the budget (policies), and memory outside the cache (weights, activations).
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from sinkpin.errors import BudgetError

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_FORMS = "a number of tokens (1024), a share (25%) or bytes (64MiB)"


@dataclass(frozen=True)
class Footprint:
    """What a cache costs for one row (one sequence of the batch).

    `per_entry`: bytes of one kept token, summed over the bounded layers (keys and values of every KV head, and the
    origins that say which token it is). `fixed`: bytes held whatever the budget (sliding layers, per-row bookkeeping).
    """

    per_entry: int
    fixed: int

    def bytes_of(self, tokens: int) -> int:
        """Bytes that `BoundedCache.nbytes()` reports for one row once `tokens` entries are held."""
        return self.fixed + tokens * self.per_entry

    def tokens_in(self, size: int) -> int:
        """The most entries whose bytes do not exceed `size`; below 1 where nothing fits."""
        return (size - self.fixed) // self.per_entry


@dataclass(frozen=True)
class Budget:
    """A budget as written: `amount` tokens, `amount` bytes, or `share` of the prompt."""

    text: str
    kind: Literal["tokens", "share", "bytes"]
    amount: int = 0
    share: Fraction = Fraction(0)

    @classmethod
    def parse(cls, written: "int | str | Budget") -> "Budget":
        """Read a budget. Raises `BudgetError` for anything that is not a positive amount in one of the three forms."""
        if isinstance(written, Budget):
            return written
        text = str(written).strip()
        if isinstance(written, bool) or not isinstance(written, int | str):
            raise BudgetError(f"budget {written!r} is a {type(written).__name__}: write {_FORMS}")
        match = re.fullmatch(r"([+-]?\d+(?:\.\d+)?)\s*(%|[KMG]?i?B)?", text, flags=re.IGNORECASE)
        if match is None or (match[2] or "").upper() == "IB":
            raise BudgetError(f"budget {text!r} cannot be read: write {_FORMS}")
        number, unit = Fraction(match[1]), (match[2] or "").upper()
        if number <= 0:
            raise BudgetError(f"budget {text} leaves room for nothing: it must be above zero; write {_FORMS}")
        if unit == "%":
            if number > 100:
                raise BudgetError(
                    f"budget {text} is more than all of it: a share, of the prompt or (in a comparison without one) of the text, is at "
                    "most 100%"
                )
            return cls(text, "share", share=number / 100)
        if unit:
            return cls(text, "bytes", amount=int(number * _UNITS[unit]))
        if number.denominator != 1:
            raise BudgetError(f"budget {text} is not a whole number of tokens: write {_FORMS}")
        return cls(text, "tokens", amount=int(number))

    def tokens(self, *, pins: int, footprint: Footprint, prompt: int | None = None) -> tuple[int, str | None]:
        """The budget in tokens, and a note where it had to give way.

        `pins` is the most entries any row pins, `prompt` the length a share is taken of. A share rounds down but gives
        way to `pins + 1`, and says so in the note; tokens and bytes that do not hold more than the pins raise
        `BudgetError`.
        """
        if self.kind == "share":
            assert prompt is not None, "a share needs the prompt's length"
            tokens = int(self.share * prompt)
            if tokens > pins:
                return tokens, None
            note = f"{self.text} of {prompt} tokens is {tokens}, not above the {pins} pins: the budget is {pins + 1}"
            return pins + 1, note
        tokens = self.amount if self.kind == "tokens" else footprint.tokens_in(self.amount)
        size = f"{self.text} ({tokens} tokens)" if self.kind == "bytes" else f"{tokens} tokens"
        if tokens < 1:
            raise BudgetError(
                f"budget {self.text} holds no token: one costs {footprint.per_entry} bytes on top of {footprint.fixed} "
                f"fixed; give at least {footprint.bytes_of(pins + 1)} bytes"
            )
        if tokens <= pins:
            raise BudgetError(
                f"budget {size} does not exceed the {pins} pinned: nothing else could be kept; "
                f"raise the budget to at least {pins + 1} or pin fewer"
            )
        return tokens, None
