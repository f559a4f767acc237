"""Whether a long run stays as it is: perplexity, memory, bytes owned and speed over its blocks.

Perplexity is compared between passes over the same texts where there are two whole ones (the same tokens, only the
cache is older), else by a line through the blocks. Needs neither torch nor transformers. Not here: intervals.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

PASSES_LIMIT = 0.01
"""Of perplexity between passes over the same tokens."""
BLOCKS_LIMIT = 0.05
"""Of perplexity between blocks, which are different texts; or twice the line's standard error, if that is more."""
MEMORY_LIMIT_BYTES = 2 << 20
"""That the process may grow by, by a line through the readings."""
SPEED_LIMIT = 0.10
_FEWEST = 3  # blocks that a line is put through


def verdict(blocks: Sequence[Mapping[str, Any]], passes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Each series with its change over the run, the limit, and `flat`: True, False, or None for too short a run.

    The first block is left out where others are left: the cache fills in it, and the process warms up.
    """
    later = blocks[1:] if len(blocks) > _FEWEST else blocks
    found = {
        "perplexity": _perplexity(later, passes),
        "memory": _memory([block["resident_bytes"] for block in later]),
        "bytes_owned": _owned([block["nbytes"] for block in later]),
        "speed": _speed([block["tokens_per_s"] for block in later]),
    }
    flats = [series["flat"] for series in found.values()]
    return found | {"flat": False if False in flats else None if None in flats else True}


def sentence(found: dict[str, Any]) -> str:
    """The verdict in one line."""
    words = {True: "flat", False: "not flat", None: "too few blocks to tell"}
    parts = [
        f"perplexity {words[found['perplexity']['flat']]} ({_percent(found['perplexity']['change'])})",
        f"memory {words[found['memory']['flat']]} ({_mib(found['memory']['change'])})",
        f"bytes owned {words[found['bytes_owned']['flat']]} ({found['bytes_owned']['change']:+,})",
        f"speed {words[found['speed']['flat']]} ({_percent(found['speed']['change'])})",
    ]
    return "; ".join(parts)


def _percent(change: float | None) -> str:
    return "-" if change is None else f"{100 * change:+.2f} %"


def _mib(change: float | None) -> str:
    return "-" if change is None else f"{change / 2**20:+.2f} MiB"


def _perplexity(blocks: Sequence[Mapping[str, Any]], passes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    whole = [each for each in passes if each["whole"]]
    if len(whole) >= 2:
        base = whole[1] if len(whole) > 2 else whole[0]  # the first began with an empty cache
        apart = float(np.expm1(whole[-1]["nll"] - base["nll"]))
        return {
            "flat": abs(apart) <= PASSES_LIMIT,
            "change": apart,
            "limit": PASSES_LIMIT,
            "how": f"perplexity of pass {whole[-1]['pass']} over the texts against that of pass {base['pass']}",
        }
    change, error = _line([block["nll"] for block in blocks])
    if change is None or error is None:
        return {"flat": None, "change": None, "limit": BLOCKS_LIMIT, "how": "too few blocks"}
    limit = max(BLOCKS_LIMIT, 2 * error)
    return {
        "flat": abs(change) <= limit,
        "change": float(np.expm1(change)),
        "limit": limit,
        "how": "a line through the mean losses of the blocks",
    }


def _memory(readings: Sequence[int | None]) -> dict[str, Any]:
    change, _ = _line([reading for reading in readings if reading is not None])
    how = "a line through the readings"
    flat = None if change is None else change <= MEMORY_LIMIT_BYTES
    return {"flat": flat, "change": change, "limit": MEMORY_LIMIT_BYTES, "how": how}


def _owned(sizes: Sequence[int]) -> dict[str, Any]:
    change = max(sizes) - min(sizes)
    return {"flat": change == 0, "change": change, "limit": 0, "how": "largest less smallest"}


def _speed(rates: Sequence[float]) -> dict[str, Any]:
    change, _ = _line(rates)
    share = None if change is None else change / float(np.mean(rates))
    flat = None if share is None else share >= -SPEED_LIMIT  # faster is no fault
    return {"flat": flat, "change": share, "limit": SPEED_LIMIT, "how": "a line through the blocks"}


def _line(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Rise of the least-squares line from the first value to the last, and its standard error."""
    if len(values) < _FEWEST:
        return None, None
    x, y = np.arange(len(values), dtype=np.float64), np.array(values, dtype=np.float64)
    slope, start = np.polyfit(x, y, 1)
    left = y - (start + slope * x)
    error = np.sqrt((left**2).sum() / (len(y) - 2) / ((x - x.mean()) ** 2).sum())
    span = len(y) - 1
    return float(slope * span), float(error * span)
