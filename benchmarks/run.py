"""Runs `sinkpin bench` with the settings that benchmarks/README.md reports, one job after the other.

    python benchmarks/run.py                        all of it, on the demo model: hours on two cores
    python benchmarks/run.py --only decode,prefill  some of it
    python benchmarks/run.py --quick                shows that everything runs; the numbers mean nothing
    python benchmarks/run.py --peers                afterwards, every peer whose environment is built
    python benchmarks/run.py -- --dtype bfloat16    what follows -- goes to every job (a model, --threads, --device)

Each job leaves one file in benchmarks/results/latest/, whole or not at all: the JSON line of `sinkpin bench` with the
job's name and the commit added. Whatever else the machine does is measured, too: leave it alone meanwhile.
Not here: the peers themselves (peers/run.py), and the table (table.py).
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LATEST = HERE / "results" / "latest"

JOBS: dict[str, list[str]] = {
    "decode": ["decode", "--compile"],
    "decode-bfloat16": ["decode", "--compile", "--dtype", "bfloat16"],
    "decode-4096": [
        *("decode", "--entries", "4096", "--policy", "streaming"),
        *("--repeats", "60", "--recompute-repeats", "2"),
    ],
    "decode-batch": ["decode", "--entries", "512", "--batch", "1,8", "--no-recompute"],
    "prefill": ["prefill"],
    "prefill-chunks": ["prefill", "--policy", "streaming", "--tokens", "4096,32768", "--chunk", "4096"],
    "memory": ["memory"],
    "perplexity": ["perplexity"],
    "stream": ["stream", "--out", "{folder}/stream"],
}

_DECODE = ["--repeats", "3", "--warmup", "2"]
QUICK: dict[str, list[str]] = {
    "decode": ["--entries", "128", *_DECODE, "--backend", "eager"],
    "decode-bfloat16": ["--entries", "128", *_DECODE, "--backend", "eager"],
    "decode-4096": ["--entries", "256", *_DECODE],
    "decode-batch": ["--entries", "64", "--batch", "1,2", *_DECODE],
    "prefill": ["--entries", "128", "--tokens", "256,512", "--quadratic", "256", "--repeats", "2"],
    "prefill-chunks": ["--entries", "128", "--tokens", "256,512", "--chunk", "256", "--repeats", "2"],
    "memory": ["--entries", "128", "--tokens", "320", "--prefill", "1024"],
    "perplexity": ["--entries", "128", "--tokens", "1024", "--loop-tokens", "129", "--chunk", "64"],
    "stream": ["--entries", "128", "--tokens", "2048", "--block", "512"],
}
"""What `--quick` changes of them."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(JOBS)} (all)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--peers", action="store_true", help="also the peers whose environments are built")
    parser.add_argument("--to", type=Path, default=LATEST, help="folder for the results (results/latest)")
    parser.add_argument("more", nargs="*", metavar="-- ...", help="for every job")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(JOBS)
    if unknown := [name for name in names if name not in JOBS]:
        parser.error(f"--only {unknown[0]}: there are {', '.join(JOBS)}")
    arguments.to.mkdir(parents=True, exist_ok=True)
    failed = [name for name in names if not job(name, arguments)]
    if arguments.peers and not peers(arguments):
        failed.append("peers")
    if failed:
        say(f"failed: {', '.join(failed)}; what was written is of the others")
    return int(bool(failed))


def job(name: str, arguments: argparse.Namespace) -> bool:
    """Run one job and keep its line. False if it failed; its own words are on stderr."""
    argv = [word.format(folder=arguments.to) for word in JOBS[name]]
    argv += QUICK[name] if arguments.quick else []
    say(f"==> {name}: sinkpin bench {' '.join([*argv, *arguments.more])}")
    done = subprocess.run(
        [sys.executable, "-m", "sinkpin", "bench", *argv, *arguments.more, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        say(f"{name} ended with {done.returncode}")
        return False
    document = json.loads(done.stdout)
    keep(
        {"job": name, "commit": commit(), "quick": arguments.quick, **document}, arguments.to / f"{name}.json"
    )
    return True


def peers(arguments: argparse.Namespace) -> bool:
    """Every peer that is built, by their own runner."""
    tiny = ["--tiny", "--rounds", "1"] if arguments.quick else []
    argv = [sys.executable, str(HERE / "peers" / "run.py"), *tiny, "--out", str(arguments.to / "peers.jsonl")]
    return subprocess.run(argv, check=False).returncode == 0


def commit() -> str | None:
    """Of the checkout, with a mark where it was changed; None where there is no git or no checkout."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(HERE), *words], capture_output=True, text=True, check=False
            )
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if (found := git("rev-parse", "--short=12", "HEAD")) is None:
        return None
    changed = git("status", "--porcelain", "--untracked-files=no", "--", str(HERE.parent / "src"))
    return found + ("+changed" if changed else "")


def keep(document: dict[str, Any], path: Path) -> None:
    """One line, moved into place when it is whole."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        new.write_text(json.dumps(document, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
    say(f"written: {path}")


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
