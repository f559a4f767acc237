"""One decode step, one query head and one entry at a time, in double precision."""

from __future__ import annotations

from math import exp, tanh

import torch
from torch import Tensor


def rotated(key: list[float], cos: list[float], sin: list[float], interleaved: bool) -> list[float]:
    half = len(cos)
    out = list(key)
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        out[a] = key[a] * cos[i] - key[b] * sin[i]
        out[b] = key[b] * cos[i] + key[a] * sin[i]
    return out


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def naive_decode(
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
) -> tuple[Tensor, Tensor]:
    """Outputs `[batch, heads, value_dim]` and attention paid `[batch, kv_heads, entries (+ 1 with own)]`, fp64."""
    batch, heads, _ = q.shape
    kv_heads, entries = keys.shape[1:3]
    group = heads // kv_heads
    out = torch.zeros(batch, heads, values.shape[3], dtype=torch.float64)
    paid = torch.zeros(batch, kv_heads, entries + (own is not None), dtype=torch.float64)

    def slot(x: Tensor, b: int, k: int, j: int) -> int:
        return x[b, k if x.shape[1] > 1 else 0, j].item()

    for b in range(batch):
        for h in range(heads):
            k = h // group
            seen: list[tuple[int, float, list[float]]] = []
            for j in range(entries):
                if real is not None and not slot(real, b, k, j):
                    continue
                key = keys[b, k, j].tolist()
                if rotation is not None:
                    cos, sin, at, interleaved = rotation
                    row = slot(at, b, k, j)
                    key = rotated(key, cos[row].tolist(), sin[row].tolist(), interleaved)
                query = far[0] if far is not None and far[1][b, 0, j] else q
                score = scale * dot(query[b, h].tolist(), key)
                if softcap is not None:
                    score = softcap * tanh(score / softcap)
                if slopes is not None:
                    score -= slopes[h].item() * slot(distances, b, k, j)
                seen.append((j, score, values[b, k, j].tolist()))
            if own is not None:
                score = scale * dot(q[b, h].tolist(), own[0][b, k].tolist())
                if softcap is not None:
                    score = softcap * tanh(score / softcap)
                seen.append((entries, score, own[1][b, k].tolist()))
            logits = [score for _, score, _ in seen] + ([] if sinks is None else [sinks[h].item()])
            if not logits:
                continue
            highest = max(logits)
            total = sum(exp(x - highest) for x in logits)
            for j, score, value in seen:
                weight = exp(score - highest) / total
                paid[b, k, j] += weight / group
                for i, x in enumerate(value):
                    out[b, h, i] += weight * x
    return out, paid
