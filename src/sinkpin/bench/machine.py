"""What a number was measured on: hardware, versions, threads, the day. A number without these cannot be repeated.

Not here: how fast the machine is (`floor`).
"""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers

import sinkpin
from sinkpin.bench.subject import Subject

BUSY = 0.5
"""Of a load average over cores: above it others were computing, too."""


def describe(subject: Subject) -> dict[str, Any]:
    """The fields of a report that say where it comes from."""
    return {
        "device": str(subject.device),
        "dtype": str(subject.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "sinkpin": sinkpin.__version__,
            "platform": platform.platform(),
        },
        "hardware": _hardware(subject.device),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def remarks() -> list[str]:
    """What about this machine, now, a reader should know before believing a number."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, _cores()
    if load / cores <= BUSY:
        return []
    return [f"the machine was busy before the run began (load {load:.1f} on {cores} cores): not a quiet one"]


def _hardware(device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {
        "cpu": _cpu(),
        "cores": _cores(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "memory_bytes": _memory(),
        "card": None,
    }
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        found |= {"card": card.name, "card_memory_bytes": card.total_memory, "cuda": torch.version.cuda}
    return found


def _cpu() -> str:
    """As the kernel calls it; what Python knows where there is no /proc."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # a system that does not say
        return None
