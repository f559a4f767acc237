"""How sure the model was of each next token: entropy, margin and varentropy, of logits and while it generates.

Shapes: V tokens in the vocabulary; leading dimensions are kept. Entropy in nats, varentropy in nats², margin a
probability; all are computed in float32, whatever the logits are, and need three float32 copies of them: a long prompt is
fed in chunks. Not here: what attention does, and whether a token was right (its loss).
"""

from collections import deque

import torch
import transformers
from torch import Tensor

from sinkpin.errors import InputError


@torch.no_grad()
def entropy_of(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`(entropy, margin, varentropy)` float32 `[...]` of p = softmax of `logits [..., V]`, before a token is drawn from it.

    Entropy: the mean of −log p under p. Varentropy: the variance of −log p under p, 0 for a uniform p and for a certain
    one. Margin: probability of the likeliest token minus that of the next, so a tie is 0; probabilities and not logits,
    whose difference says nothing of the rest (a vocabulary of one token has nothing next to it: 1). A logit of −inf is a
    token that cannot come and contributes nothing.

    Raises `InputError` for what is no logits, and where they are no distribution: NaN, +inf, or nothing but −inf.
    """
    if logits.ndim == 0 or logits.shape[-1] == 0 or not logits.is_floating_point():
        raise InputError(
            f"logits {list(logits.shape)} {logits.dtype}: give floating-point scores [..., vocabulary]"
        )
    x = logits.float()
    x = x - x.amax(-1, keepdim=True)  # ≤ 0, so that no sum below is of terms that cancel
    weight = x.exp()
    total = weight.sum(-1)
    x = x.masked_fill(weight == 0, 0)  # 0 · −inf would be NaN
    mean = (weight * x).sum(-1) / total
    entropy = total.log() - mean
    if not bool(entropy.isfinite().all()):
        raise InputError(_what_is_wrong(logits))
    varentropy = (weight * (x - mean[..., None]) ** 2).sum(-1) / total
    top = weight.topk(min(2, weight.shape[-1]), -1).values
    margin = (top[..., 0] - top[..., 1:].sum(-1)) / total
    return entropy, margin, varentropy


def _what_is_wrong(logits: Tensor) -> str:
    rows = logits.reshape(-1, logits.shape[-1]).float()
    nan, most = rows.isnan().any(-1), rows.amax(-1)
    kinds = {"NaN": nan, "+inf": most.isposinf(), "nothing but −inf": most.isneginf()}
    found = ", ".join(f"{int(bad.sum())} with {kind}" for kind, bad in kinds.items() if bad.any())
    return (
        f"{len(rows)} rows of logits, {found}: they are no distribution, so they have no entropy; "
        "NaN and +inf come from an overflow in the model (float16?), −inf alone from masking every token"
    )


class EntropyTracker(transformers.LogitsProcessor):
    """Records how sure the model is at every position that it generates; changes nothing.

        tracker = sinkpin.EntropyTracker()
        model.generate(**inputs, logits_processor=[tracker])
        tracker.entropy  # [batch, generated]

    What is measured are the scores as they reach the tracker. `generate` runs its penalties, bans and forced tokens
    before the processors it is given, and its warpers (temperature, top-k, top-p, ...) after them: so entropy is that of
    the model at temperature 1 over all tokens it may still say, also while sampling. Processors given before the tracker
    in the list are in, those after it are not.

    Rows are those of `generate`: `num_return_sequences` copies of a prompt are neighbours, and a row that has ended goes
    on being recorded while others have not (mask it with the sequences returned). In beam search a row is a place among
    the beams, whose sequences change places between positions; with `return_dict_in_generate=True` what belongs to the
    sequences returned is `tracker.entropy[out.beam_indices[:, :n].clamp(min=0), range(n)]`, n the positions recorded.
    Assisted generation asks for scores of positions that it may take back: it is refused.

    In a loop of one's own, `tracker.update(logits)` takes the place of the call.

    Memory: 12 bytes a row and position, on the CPU. `last=n` keeps the last n positions only.
    """

    supports_continuous_batching = False  # rows would be other requests from one position to the next

    def __init__(self, last: int | None = None) -> None:
        if last is not None and last < 1:
            raise InputError(f"last={last} keeps no position: give 1 or more, or None for all")
        self._steps: deque[Tensor] = deque(maxlen=last)  # each [3, batch]
        self._fed: int | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Record `scores [batch, V]`, which follow `input_ids [batch, tokens]`, and hand them on as they are.

        Raises `InputError` where they do not follow the position recorded before: another generation has begun.
        """
        length = input_ids.shape[1]
        if self._fed is not None and length != self._fed + 1:
            raise InputError(
                f"scores behind {length} tokens do not follow those behind {self._fed}: call reset() before another "
                "generation; assisted generation, which goes back, cannot be recorded"
            )
        self.update(scores)
        self._fed = length
        return scores

    def update(self, logits: Tensor) -> None:
        """Record `[batch, V]`, the logits of one more position, or `[batch, positions, V]`, those of several."""
        if logits.ndim not in (2, 3):
            raise InputError(f"logits {list(logits.shape)}: give [batch, V], or [batch, positions, V]")
        if self._steps and logits.shape[0] != self._steps[0].shape[1]:
            raise InputError(
                f"{logits.shape[0]} rows of logits after {self._steps[0].shape[1]}: "
                "call reset() before another generation"
            )
        found = torch.stack(entropy_of(logits if logits.ndim == 3 else logits[:, None])).cpu()
        self._steps.extend(found.unbind(-1))

    def reset(self) -> None:
        """Forget everything recorded."""
        self._steps.clear()
        self._fed = None

    @property
    def entropy(self) -> Tensor:
        """Entropy of the next token in nats, float32 `[batch, generated]`; `[0, 0]` where nothing is recorded."""
        return self._of(0)

    @property
    def margin(self) -> Tensor:
        """Probability of the likeliest token minus that of the next, float32 `[batch, generated]`."""
        return self._of(1)

    @property
    def varentropy(self) -> Tensor:
        """Variance of −log p in nats², float32 `[batch, generated]`."""
        return self._of(2)

    def _of(self, which: int) -> Tensor:
        return torch.stack([step[which] for step in self._steps], 1) if self._steps else torch.empty(0, 0)
