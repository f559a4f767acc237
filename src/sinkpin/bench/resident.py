"""Memory as the system sees it: the resident set of this process on a CPU, what torch has allocated on a card.

Freed memory that the allocator keeps would hide growth or look like it, so `settle` gives it back first. Read from
Linux's /proc; elsewhere, on a CPU, there is nothing to read and every answer is None. Not here: what a cache owns
(`BoundedCache.nbytes`), which is counted and not observed.
"""

import ctypes
import gc
import os
from pathlib import Path

import torch

_STATM, _STATUS, _CLEAR = (Path("/proc/self") / name for name in ("statm", "status", "clear_refs"))
_RESET_PEAK = "5"  # what to write into clear_refs to make the peak begin anew


class Resident:
    """Readings in bytes, for one device."""

    def __init__(self, device: torch.device) -> None:
        self._card = device if device.type == "cuda" else None

    @property
    def what(self) -> str:
        return "resident set" if self._card is None else "allocated by torch on the card"

    def settle(self) -> None:
        """Free what can be freed, so that the next reading is of what is in use."""
        gc.collect()
        if self._card is not None:
            torch.cuda.empty_cache()
        elif hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
            libc.malloc_trim(0)

    def now(self) -> int | None:
        if self._card is not None:
            return torch.cuda.memory_allocated(self._card)
        if not _STATM.exists():
            return None
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def restart_peak(self) -> bool:
        """Let `peak` begin anew; False where the system does not allow it."""
        if self._card is not None:
            torch.cuda.reset_peak_memory_stats(self._card)
            return True
        try:
            _CLEAR.write_text(_RESET_PEAK)
        except OSError:  # no /proc, or one that may not be written
            return False
        return True

    def peak(self) -> int | None:
        """The most since `restart_peak`."""
        if self._card is not None:
            return torch.cuda.max_memory_allocated(self._card)
        if not _STATUS.exists():
            return None
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
