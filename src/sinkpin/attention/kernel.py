"""One decode step over a bounded cache as one Triton kernel: rotation at rank, masked attention, attention paid.

One program serves one KV head of one row and its whole group of query heads: it reads every key and value once and
keeps a running softmax; where the attention paid is asked for, raw scores go to a scratch and are normalised by the
same program at the end, so that they are computed once. All arithmetic is fp32. Nothing here waits for the device, and
every shape follows from the arguments' shapes, so a step can be captured in a CUDA graph.

Checked: in Triton's interpreter on a CPU against `tests/naive/decode.py`, and that Triton's compiler makes machine
code of it for compute capability 8.0 and 9.0. Not checked: it has not run on a GPU, and no time was measured on one.
Known limits: a row's KV head is one program, so few rows with few KV heads leave most of a large card idle (no split
over the entries); fp32 products use no tensor cores; more than one query a row, and gradients, are not covered.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import triton.language as tl

_TILE = 2**14
"""Products (query heads x entries x dimensions) that a block holds in registers at once: 64 a thread at 8 warps."""

_DOT_FROM = 16
"""Group size from which products are made by `tl.dot`, which needs 16 rows: smaller groups would pad to that."""


def available(device: torch.device) -> bool:
    """Whether `decode` runs on `device`: a CUDA card that Triton supports (8.0 or newer), or Triton's interpreter."""
    if not _importable():
        return False
    if os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y"):
        return True
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


@cache
def _importable() -> bool:
    return importlib.util.find_spec("triton") is not None


def decode(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    own: tuple[Tensor, Tensor] | None = None,
    real: Tensor | None = None,
    rotation: tuple[Tensor, Tensor, Tensor, bool] | None = None,
    far: tuple[Tensor, Tensor] | None = None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
    distances: Tensor | None = None,
    sinks: Tensor | None = None,
    mass: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Outputs `[batch, heads, value_dim]` in q's dtype, and with `mass` what each entry was paid.

    `q [batch, heads, key_dim]`: queries, rotated at their own position; head h uses KV head h // group.
    `keys [batch, kv_heads, entries, key_dim]`, `values [batch, kv_heads, entries, value_dim]`: any strides.
    `own`: the new token's key and value `[batch, kv_heads, dim]`, the key rotated; it is always seen and comes last.
    `real`: bool `[batch, 1 or kv_heads, entries]`; nothing of an empty slot is read. A row that has no real slot, no
    `own` and no `sinks` gets zeros.
    `rotation`: fp32 tables of cos and sin `[positions, rotary_dim / 2]`, int rows of them `[batch, 1 or kv_heads,
    entries]` by which the stored, unrotated keys are rotated, and whether pairs interleave (as `rope.Rotary`). That
    rows are within the tables is not checked: it would wait for the device.
    `far`: queries `[batch, heads, key_dim]` that score the slots marked in bool `[batch, 1, entries]` instead of `q`.
    `softcap`, `slopes`, `sinks`: as `scores.Scoring`; `distances` int `[batch, 1 or kv_heads, entries]` are how far
    behind the query an entry is, 0 for `own`.
    Attention paid: fp32 `[batch, kv_heads, entries (+ 1 with own)]`, mean over the group's query heads.
    """
    batch, heads, key_dim = q.shape
    kv_heads, entries, value_dim = keys.shape[1], keys.shape[2], values.shape[3]
    group = heads // kv_heads
    assert heads == group * kv_heads, f"{heads} query heads cannot share {kv_heads} KV heads"
    assert keys.shape == (batch, kv_heads, entries, key_dim) and values.shape[:3] == keys.shape[:3]
    assert (slopes is None) == (distances is None), "slopes need distances"

    def per_slot(x: Tensor | None) -> tuple[Tensor | None, tuple[int, ...]]:
        """`x` for every row, KV head and entry; where it has one KV head for all, its stride is 0."""
        if x is None:
            return None, (0, 0, 0)
        x = x.expand(batch, kv_heads, entries)
        return x, x.stride()

    cos, sin, rows, interleaved = rotation or (None, None, None, False)
    half = 0 if cos is None else cos.shape[-1]
    rest = key_dim - 2 * half
    q_far, marked = far or (None, None)
    own_key, own_value = own or (None, None)
    real, real_strides = per_slot(real)
    rows, row_strides = per_slot(rows)
    marked, marked_strides = per_slot(marked)
    distances, distance_strides = per_slot(distances)
    wide = entries + (own is not None)
    out = q.new_empty(batch, heads, value_dim)
    scores = q.new_empty(batch, heads, wide, dtype=torch.float32) if mass else None
    paid = q.new_empty(batch, kv_heads, wide, dtype=torch.float32) if mass else None

    dot = group >= _DOT_FROM
    members = _power_of_two(group)
    columns = max(_padded(value_dim), _padded(half), _padded(rest))
    block = 32 if dot else max(16, min(128, _TILE // (members * columns)))
    with torch.cuda.device_of(q):  # Triton starts on the current card, and a model may be spread over several
        _kernel()[(batch, kv_heads)](
            *(_packed(x) for x in (q, q_far, own_key, own_value, cos, sin, slopes, sinks)),
            *(keys, values, real, rows, marked, distances, out, scores, paid),
            *(entries, scale, softcap),
            *keys.stride(),
            *values.stride(),
            *real_strides,
            *row_strides,
            *marked_strides,
            *distance_strides,
            KEY_DIM=key_dim,
            VALUE_DIM=value_dim,
            GROUP=group,
            HALF=half,
            INTERLEAVED=interleaved,
            MEMBERS=members,
            PAIRS=_padded(half),
            RESTS=_padded(rest),
            VALUES=_padded(value_dim),
            BLOCK=block,
            DOT=dot,
            num_warps=8,
        )
    return out, paid


def _packed(x: Tensor | None) -> Tensor | None:
    """What has no strides in the kernel: the small tensors of one step, and tables, which come contiguous anyway."""
    return None if x is None else x.contiguous()


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _padded(n: int) -> int:
    """Triton's blocks are powers of two, and those of `tl.dot` at least 16; 0 is a part that is not there."""
    return max(16, _power_of_two(n)) if n else 0


@cache
def _kernel() -> Any:
    """The kernel below, made Triton's when it is first needed. Triton looks names up among the module's globals."""
    import triton
    import triton.language

    globals()["tl"] = triton.language
    for function in (_loaded, _products, _mixture, _capped):
        globals()[function.__name__] = triton.jit(function)
    return triton.jit(_step)


def _loaded(pointers, mask):
    """fp32 numbers, 0 where the mask hides them."""
    return tl.load(pointers, mask=mask, other=0).to(tl.float32)


def _products(a, b, DOT: tl.constexpr):
    """Dot products `[m, n]` of the rows of `a [m, d]` and `b [n, d]`."""
    if DOT:
        out = tl.dot(a, tl.trans(b), input_precision="ieee")
    else:
        out = tl.sum(a[:, None, :] * b[None, :, :], axis=2)
    return out


def _mixture(weight, value, DOT: tl.constexpr):
    """Rows of `value [n, d]` summed by `weight [m, n]`: `[m, d]`."""
    if DOT:
        out = tl.dot(weight, value, input_precision="ieee")
    else:
        out = tl.sum(weight[:, :, None] * value[None, :, :], axis=1)
    return out


def _capped(score, softcap):
    """`softcap * tanh(score / softcap)`, if there is one; Triton has no tanh that its interpreter knows."""
    if softcap is not None:
        shrunk = tl.exp(-2.0 * tl.abs(score) / softcap)
        bounded = softcap * (1.0 - shrunk) / (1.0 + shrunk)
        score = tl.where(score < 0.0, -bounded, bounded)
    return score


# In the kernel m, n, p, r and v count query heads of the group, entries of the block, rotated pairs, unrotated key
# dimensions and value dimensions. Sizes in capitals are those of the blocks (powers of two) or of the model; an
# argument that is None, or a size that is 0, leaves the code that needs it out.
# fmt: off
def _step(
    q, q_far, own_key, own_value,  # contiguous, [batch * heads, KEY_DIM] and [batch * kv_heads, …]
    cos, sin, slopes, sinks,
    keys, values, real, rows, marked, distances,
    out, scores, paid,  # [batch * heads, VALUE_DIM], [batch * heads, wide], [batch * kv_heads, wide]
    entries, scale, softcap,
    keys_b, keys_h, keys_n, keys_d,  # strides by row, KV head, entry and dimension
    values_b, values_h, values_n, values_d,
    real_b, real_h, real_n,
    rows_b, rows_h, rows_n,
    marked_b, marked_h, marked_n,
    distances_b, distances_h, distances_n,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, GROUP: tl.constexpr,
    HALF: tl.constexpr, INTERLEAVED: tl.constexpr,
    MEMBERS: tl.constexpr, PAIRS: tl.constexpr, RESTS: tl.constexpr, VALUES: tl.constexpr,
    BLOCK: tl.constexpr, DOT: tl.constexpr,
):
    # fmt: on
    b = tl.program_id(0).to(tl.int64)  # 64 bits: a batch of long caches has more than 2^31 numbers
    h = tl.program_id(1).to(tl.int64)
    shared = b * tl.num_programs(1) + h
    m = tl.arange(0, MEMBERS)
    query = shared * GROUP + m
    in_group = m < GROUP
    v = tl.arange(0, VALUES)
    in_value = v < VALUE_DIM
    keys += b * keys_b + h * keys_h
    values += b * values_b + h * values_h
    wide = entries
    if own_key is not None:
        wide = entries + 1

    # A key has three parts: the first and second of each rotated pair, and what passes unrotated.
    if PAIRS:
        p = tl.arange(0, PAIRS)
        in_pair = p < HALF
        if INTERLEAVED:
            first = 2 * p
            second = first + 1
        else:
            first = p
            second = p + HALF
        pair_mask = in_group[:, None] & in_pair[None, :]
        q_1 = _loaded(q + query[:, None] * KEY_DIM + first[None, :], pair_mask)
        q_2 = _loaded(q + query[:, None] * KEY_DIM + second[None, :], pair_mask)
    if RESTS:
        r = 2 * HALF + tl.arange(0, RESTS)
        in_rest = r < KEY_DIM
        rest_mask = in_group[:, None] & in_rest[None, :]
        q_3 = _loaded(q + query[:, None] * KEY_DIM + r[None, :], rest_mask)
    if slopes is not None:
        slope = _loaded(slopes + h * GROUP + m, in_group)

    # The running softmax: the highest score met, the sum of exp(score - highest), the mixture of values by them.
    highest = tl.full([MEMBERS], -float("inf"), tl.float32)
    total = tl.zeros([MEMBERS], tl.float32)
    mixed = tl.zeros([MEMBERS, VALUES], tl.float32)
    if sinks is not None:
        highest = _loaded(sinks + h * GROUP + m, in_group)
        total += 1.0
    if own_key is not None:
        own_score = tl.zeros([MEMBERS], tl.float32)
        own_row = own_key + shared * KEY_DIM
        if PAIRS:
            own_1 = _loaded(own_row + first, in_pair)
            own_2 = _loaded(own_row + second, in_pair)
            own_score += tl.sum(q_1 * own_1[None, :] + q_2 * own_2[None, :], axis=1)
        if RESTS:
            own_3 = _loaded(own_row + r, in_rest)
            own_score += tl.sum(q_3 * own_3[None, :], axis=1)
        own_score = _capped(own_score * scale, softcap)
        if scores is not None:
            tl.store(scores + query * wide + entries, own_score, mask=in_group)
        own_mixed = _loaded(own_value + shared * VALUE_DIM + v, in_value)
        before = highest
        highest = tl.maximum(before, own_score)
        own_weight = tl.exp(own_score - highest)
        total = total * tl.exp(before - highest) + own_weight
        mixed = own_weight[:, None] * own_mixed[None, :]

    for start in range(0, entries, BLOCK):
        n = start + tl.arange(0, BLOCK).to(tl.int64)
        seen = n < entries
        if real is not None:
            seen = seen & (_loaded(real + b * real_b + h * real_h + n * real_n, seen) > 0)
        key = keys + n[:, None] * keys_n
        score = tl.zeros([MEMBERS, BLOCK], tl.float32)
        if PAIRS:
            row = tl.load(rows + b * rows_b + h * rows_h + n * rows_n, mask=seen, other=0).to(tl.int64)
            in_table = seen[:, None] & in_pair[None, :]
            c = _loaded(cos + row[:, None] * HALF + p[None, :], in_table)
            s = _loaded(sin + row[:, None] * HALF + p[None, :], in_table)
            raw_1 = _loaded(key + first[None, :] * keys_d, in_table)
            raw_2 = _loaded(key + second[None, :] * keys_d, in_table)
            key_1 = raw_1 * c - raw_2 * s
            key_2 = raw_2 * c + raw_1 * s
            score += _products(q_1, key_1, DOT) + _products(q_2, key_2, DOT)
        if RESTS:
            rest = seen[:, None] & in_rest[None, :]
            key_3 = _loaded(key + r[None, :] * keys_d, rest)
            score += _products(q_3, key_3, DOT)
        if q_far is not None:
            is_far = _loaded(marked + b * marked_b + h * marked_h + n * marked_n, seen)
            if tl.max(is_far, axis=0) > 0:  # pinned sinks are few: most blocks have none
                far_score = tl.zeros([MEMBERS, BLOCK], tl.float32)
                far_row = q_far + query[:, None] * KEY_DIM
                if PAIRS:
                    far_1 = _loaded(far_row + first[None, :], pair_mask)
                    far_2 = _loaded(far_row + second[None, :], pair_mask)
                    far_score += _products(far_1, key_1, DOT) + _products(far_2, key_2, DOT)
                if RESTS:
                    far_3 = _loaded(far_row + r[None, :], rest_mask)
                    far_score += _products(far_3, key_3, DOT)
                score = tl.where(is_far[None, :] > 0, far_score, score)
        score = _capped(score * scale, softcap)
        if slopes is not None:
            behind = _loaded(distances + b * distances_b + h * distances_h + n * distances_n, seen)
            score -= slope[:, None] * behind[None, :]
        score = tl.where(seen[None, :], score, -float("inf"))
        if scores is not None:
            inside = in_group[:, None] & (n < entries)[None, :]
            tl.store(scores + query[:, None] * wide + n[None, :], score, mask=inside)
        in_values = seen[:, None] & in_value[None, :]
        value = _loaded(values + n[:, None] * values_n + v[None, :] * values_d, in_values)
        before = highest
        highest = tl.maximum(before, tl.max(score, axis=1))
        base = tl.where(highest == -float("inf"), 0.0, highest)  # nothing real met yet: -inf - -inf is NaN
        weight = tl.exp(score - base[:, None])
        shrunk = tl.exp(before - base)
        total = total * shrunk + tl.sum(weight, axis=1)
        mixed = mixed * shrunk[:, None] + _mixture(weight, value, DOT)

    share = 1.0 / tl.where(total > 0.0, total, 1.0)
    tl.store(
        out + query[:, None] * VALUE_DIM + v[None, :],
        (mixed * share[:, None]).to(out.dtype.element_ty),
        mask=in_group[:, None] & in_value[None, :],
    )
    if paid is not None:
        tl.debug_barrier()  # the scores that other threads of this program wrote
        base = tl.where(highest == -float("inf"), 0.0, highest)
        for start in range(0, wide, BLOCK):
            n = start + tl.arange(0, BLOCK).to(tl.int64)
            inside = in_group[:, None] & (n < wide)[None, :]
            score = tl.load(scores + query[:, None] * wide + n[None, :], mask=inside, other=-float("inf"))
            weight = tl.exp(score - base[:, None]) * share[:, None]
            tl.store(paid + shared * wide + n, tl.sum(weight, axis=0) / GROUP, mask=n < wide)
