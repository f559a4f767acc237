"""From places in a text to tokens: which tokens lie wholly between two characters.

By the offsets that a fast tokenizer gives, after what it trimmed off them is put back; with a tokenizer that has none, by
encoding the text up to a place, or from it on, and seeing whether the tokens are those of the whole. The second misses a place
that changes how both sides are encoded: the tokens about it count as straddling. Not here: whose characters they are
(`template`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from sinkpin.spans import Span

if TYPE_CHECKING:
    import transformers

_SPACES = "Ġ▁"  # how the vocabularies of byte-level BPE and of sentencepiece write a space


def encode(
    tokenizer: "transformers.PreTrainedTokenizerBase", text: str
) -> tuple[list[int], Callable[[int, int], Span]]:
    """The ids of `text`, nothing added, and a function from `(start, stop)` in characters to the tokens wholly inside.

    A token that straddles `start` or `stop` is outside. Where none is inside the span is empty, behind the tokens that begin
    before `start`. The tokens that share one character (an emoji in bytes) are inside where it is. Without offsets the text is
    encoded about twice a call, or as often as it takes to find a place between two tokens.
    """
    options = {"add_special_tokens": False, "truncation": False, "padding": False, "verbose": False}
    if not tokenizer.is_fast:
        ids = list(tokenizer(text, **options)["input_ids"])
        return ids, _by_encoding(lambda piece: list(tokenizer(piece, **options)["input_ids"]), text, ids)
    encoded = tokenizer(text, **options, return_offsets_mapping=True)
    ids = list(encoded["input_ids"])
    spans = untrimmed(list(tokenizer.convert_ids_to_tokens(ids)), encoded["offset_mapping"])

    def tokens_of(start: int, stop: int) -> Span:
        first = sum(begin < start for begin, _ in spans)
        return first, max(first, sum(end <= stop for _, end in spans))

    return ids, tokens_of


def untrimmed(tokens: list[str], offsets: list[Span]) -> list[Span]:
    """Offsets with the spaces that belong to a token but were left out of its offset, as byte-level tokenizers do.

    Only spaces that the token's name has, and only where no other token has them: a tokenizer that drops white space
    altogether leaves it to nobody.
    """
    spans: list[Span] = []
    for token, (start, stop) in zip(tokens, offsets, strict=True):
        free = spans[-1][1] if spans else 0
        leading = len(token) - len(token.lstrip(_SPACES))
        spans.append((min(start, max(free, start - leading)), stop))
    for i, token in enumerate(tokens[:-1]):
        trailing = len(token) - len(token.rstrip(_SPACES))
        if trailing < len(token):
            spans[i] = (spans[i][0], max(spans[i][1], min(spans[i + 1][0], spans[i][1] + trailing)))
    return spans


def _by_encoding(
    encode_piece: Callable[[str], list[int]], text: str, ids: list[int]
) -> Callable[[int, int], Span]:
    def before(place: int) -> int | None:
        """How many tokens lie before a place in the text; None inside a token, as far as can be told.

        White space that ends a text is often encoded otherwise than where it goes on: hence the other side.
        """
        head = encode_piece(text[:place])
        if head == ids[: len(head)]:
            return len(head)
        rest = len(ids) - len(tail := encode_piece(text[place:]))
        return rest if rest >= 0 and tail == ids[rest:] else None

    def tokens_of(start: int, stop: int) -> Span:
        at, first = next((p, n) for p in range(start, len(text) + 1) if (n := before(p)) is not None)
        return first, next((n for p in range(stop, at, -1) if (n := before(p)) is not None), first)

    return tokens_of
