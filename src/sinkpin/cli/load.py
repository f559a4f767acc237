"""The model a user names: a folder, a hub name, or the demo model, with its tokenizer.

Everything that can be wrong with it is one line that names the remedy. Not here: whether the model suits the arms that
are asked for (`evaluate.compare`), and models that need code from a repository, which is never run.
"""

import argparse
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkpin import demo
from sinkpin.errors import InputError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_LONGEST_REASON = 160  # characters of another library's error: some list every architecture there is
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model*.bin")
_CONFIGS = ("config.json", "adapter_config.json")


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode with its tokenizer, and what to call it."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    name: str


def add_options(parser: argparse.ArgumentParser, of: str = "the weights and the cache") -> None:
    """`--dtype` and `--device`, as `load_model` takes them; `of`: what has the dtype."""
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help=f"of {of} (default: float32 on a CPU, the checkpoint's own on a GPU)",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="where to run (default: the GPU if there is one)"
    )


def load_model(named: str | None, *, dtype: str = "auto", device: str | None = None) -> Loaded:
    """The model and tokenizer of a folder or hub name, or the demo model (None).

    `device` None is the GPU where there is one. `dtype` "auto" is float32 on a CPU, where lower precision is
    neither faster nor exact, and the checkpoint's own on a GPU. A network is used only for a hub name or to
    fetch the demo model.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no GPU here; leave it out to run on the CPU")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if dtype == "auto" and device == "cpu":
        dtype = "float32"
    if named is None:
        place, local = str(demo.model_folder()), True
    else:
        place, local = _locate(named)

    import transformers

    with demo.quiet_transformers(bars=not local and sys.stderr.isatty()):
        options: dict[str, Any] = {"local_files_only": local, "trust_remote_code": False}
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(place, **options)
        except Exception as error:  # whatever a foreign file makes a foreign library raise
            raise ModelError(_why("the tokenizer of ", named or place, place, error, local=local)) from error
        try:
            found: Any = transformers.AutoModelForCausalLM.from_pretrained(
                place,
                dtype=dtype if dtype == "auto" else getattr(torch, dtype),
                output_loading_info=True,
                **options,
            )
        except Exception as error:
            raise ModelError(_why("", named or place, place, error, local=local)) from error
    model, info = found
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"the weights of {named} lack {len(missing)} tensors ({missing[0]}, …), "
            "which would stay random: name a complete checkpoint of a causal language model"
        )
    if getattr(model, "hf_quantizer", None) is None:  # a quantiser has placed its weights itself
        model.to(device)
    return Loaded(model.eval(), tokenizer, demo.NAME if named is None else named)


def _locate(named: str) -> tuple[str, bool]:
    """What to hand to `from_pretrained`, and whether only local files may be used."""
    folder = Path(named).expanduser()
    if folder.is_dir():
        present = {path.name for path in folder.iterdir()}
        if not present.intersection(_CONFIGS):
            raise ModelError(
                f"{named} holds no config.json, so it is no model folder: "
                "name one that `save_pretrained` made"
            )
        if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
            raise ModelError(
                f"{named} holds no weights (no .safetensors, no pytorch_model.bin): name a complete folder"
            )
        return str(folder), True
    if folder.exists():
        raise ModelError(f"{named} is a file: name the folder that holds config.json and the weights")
    if named.startswith((".", "~", os.sep)) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", named):
        raise ModelError(f"there is no folder {named}: name a model folder, or a hub name like owner/model")
    return named, not _hub_reachable(named)


def _hub_reachable(named: str) -> bool:
    """Whether the hub answers. `from_pretrained` asks for many files and retries each, which takes minutes
    offline."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    try:
        HfApi().model_info(named, timeout=10)
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelError(
            f"{named} is neither a folder here nor a model on the Hugging Face hub: check the name "
            "(a private or gated model needs `hf auth login`)"
        ) from error
    except HfHubHTTPError:
        return True  # it answered; what it will not give is said when it is asked for
    except Exception:  # noqa: BLE001 - each version of the hub's client has its own network errors
        return False  # the model may still be in its cache
    return True


def _why(part: str, named: str, place: str, error: Exception, *, local: bool) -> str:
    folder = Path(place)
    if local and isinstance(error, OSError) and not folder.is_dir():
        return (
            f"{named} is no folder here and not whole in the local Hugging Face cache, and the hub cannot "
            "be reached: check the network or the name, or name a model folder"
        )
    if part and folder.is_dir() and not any(folder.glob("*token*")) and not any(folder.glob("*vocab*")):
        return (
            f"{named} holds no tokenizer (no tokenizer.json): save the model's there, "
            f"AutoTokenizer.from_pretrained(…).save_pretrained({named!r})"
        )
    words = " ".join(str(error).split()) or "no reason given"
    if len(words) > _LONGEST_REASON:
        words = words[:_LONGEST_REASON] + "…"
    remedy = "it may be damaged or not downloaded whole: fetch or save it again"
    if not folder.is_dir():
        remedy = "check that it is a causal language model and that its download is whole"
    return f"cannot load {part}{named} ({type(error).__name__}: {words}): {remedy}"
