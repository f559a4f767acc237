"""What measuring attention mass adds to a plain prefill: time, and the process's memory. One JSON line.

    python benchmarks/detect.py                    the demo model, 16,384 tokens: several minutes on two cores
    python benchmarks/detect.py --tokens 4096

Both read the same tokens in the same chunks, in turns; each in a process of its own, since a peak cannot be taken back.
The plain one is transformers' `DynamicCache` with logits of every chunk. Not here: experiments and ablations, which are
many such prefills (`sinkpin detect`).
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("plain", "measured"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(one(arguments.only, arguments.tokens)))
        return
    runs: dict[str, list[dict[str, float]]] = {"plain": [], "measured": []}
    for _ in range(arguments.rounds):
        for name, found in runs.items():
            argv = [sys.executable, __file__, "--only", name, "--tokens", str(arguments.tokens)]
            done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
            found.append(json.loads(done.stdout))
            print(f"{name}: {found[-1]}", file=sys.stderr, flush=True)
    import torch
    import transformers

    print(
        json.dumps(
            {
                "bench": "detect",
                "tokens": arguments.tokens,
                "seconds": {name: [run["seconds"] for run in found] for name, found in runs.items()},
                "ratio": median(
                    b["seconds"] / a["seconds"] for a, b in zip(runs["plain"], runs["measured"], strict=True)
                ),
                "peak_mib": {name: [run["peak_mib"] for run in found] for name, found in runs.items()},
                "added_mib": median(
                    b["peak_mib"] - a["peak_mib"]
                    for a, b in zip(runs["plain"], runs["measured"], strict=True)
                ),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "threads": torch.get_num_threads(),
                "machine": platform.processor() or platform.machine(),
            }
        )
    )


def one(name: str, tokens: int) -> dict[str, float]:
    """One prefill in this process: seconds, and what it added to the peak of the process."""
    import torch
    from transformers import DynamicCache

    from sinkpin import demo
    from sinkpin.cache.compat import CACHE_KEYWORD
    from sinkpin.cli.load import load_model
    from sinkpin.sinks.measure import CHUNK, measure

    loaded = load_model(None)
    ids = torch.tensor(loaded.tokenizer(demo.sample_text(), verbose=False).input_ids[:tokens])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    if name == "measured":
        measure(loaded.model, ids)
    else:
        cache = DynamicCache(config=loaded.model.config)
        with torch.inference_mode():
            for chunk in ids.split(CHUNK):
                loaded.model(chunk[None], **{CACHE_KEYWORD: cache}).logits[0].float().log_softmax(-1)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "peak_mib": (peak - before) / 1024}


if __name__ == "__main__":
    main()
