"""What a user types, as a model, a tokenizer and token ids: folders and hub names, files and standard input.

Everything that can be wrong with them is one line that names the remedy, and the text is checked before a
model is loaded. Not here: whether the model and the text suit the arms that are asked for
(`evaluate.compare`), chat templates (a text is taken as it is), and models that need code from a repository,
which is never run.
"""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from sinkpin import demo
from sinkpin.errors import InputError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

REPLACED = 4  # tokens that `replace_first` replaces: the sinks of StreamingLLM

_BLOCK = 1 << 20
_LONGEST_REASON = 240  # characters of another library's error: some list every architecture there is
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model*.bin")
_CONFIGS = ("config.json", "adapter_config.json")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}


@dataclass(frozen=True)
class Text:
    """A text, and what to call it."""

    content: str
    name: str


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode with its tokenizer, and what to call it."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    name: str


def read_text(source: str | None) -> Text:
    """The text of a UTF-8 file, of standard input (`-`), or the packaged novel (None)."""
    if source is None:
        return Text(demo.sample_text(), demo.TEXT_NAME)
    name = "standard input" if source == "-" else source
    try:
        if source == "-":
            if sys.stdin is None:
                raise InputError("standard input is closed: name a text file")
            data = _read(sys.stdin.buffer, name)
        elif Path(source).is_dir():
            raise InputError(f"{source} is a folder: name one text file in it")
        else:
            with open(source, "rb") as file:
                data = _read(file, name)
    except OSError as error:
        raise InputError(
            f"cannot read the text {name} ({error.strerror or error}): name a UTF-8 text file"
        ) from error
    try:
        content = data.decode("utf-8-sig")  # a byte order mark is no text, and would become the first sink
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8 text (byte {data[error.start]:#04x} at offset {error.start}): "
            "convert it first, for example with `iconv -f LATIN1 -t UTF-8`"
        ) from error
    if not content.strip():
        raise InputError(f"{name} is empty: there is no text in it to score")
    return Text(content, name)


def _read(file: IO[bytes], name: str) -> bytes:
    """All of `file`, given up at the first NUL byte: a device would never end."""
    blocks: list[bytes] = []
    while block := file.read(_BLOCK):
        if b"\0" in block:
            offset = len(blocks) * _BLOCK + block.index(b"\0")
            raise InputError(f"{name} is binary (NUL byte at offset {offset}): give UTF-8 text")
        blocks.append(block)
    return b"".join(blocks)


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
            found: Any = transformers.AutoModelForCausalLM.from_pretrained(
                place,
                dtype=dtype if dtype == "auto" else getattr(torch, dtype),
                output_loading_info=True,
                **options,
            )
        except Exception as error:  # whatever a foreign file makes a foreign library raise
            raise ModelError(_why(named or place, place, error, local=local)) from error
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


def _why(named: str, place: str, error: Exception, *, local: bool) -> str:
    if local and isinstance(error, OSError) and not Path(place).is_dir():
        return (
            f"{named} is no folder here and not whole in the local Hugging Face cache, and the hub cannot "
            "be reached: check the network or the name, or name a model folder"
        )
    words = " ".join(str(error).split()) or "no reason given"
    if len(words) > _LONGEST_REASON:
        words = words[:_LONGEST_REASON] + "…"
    return f"cannot load {named} ({type(error).__name__}: {words})"


def encode(tokenizer: "PreTrainedTokenizerBase", text: Text, tokens: int) -> list[int]:
    """The first `tokens` ids of the text, or all if there are fewer. Raises `InputError` if there is none.

    What the tokenizer puts before a text (a BOS, usually) is there exactly once, also if the text brings it
    along. Nothing is put behind it: a text cut at N tokens has not ended. The whole text is encoded and then
    cut, since where a cut text would be split differently cannot be known for every tokenizer (5 s for 10
    MB).
    """
    ids = _plain(tokenizer, text.content)
    if not ids:
        raise InputError(f"the tokenizer makes no token of {text.name}: give a text that it can read")
    opening = _opening(tokenizer, text.content)
    if ids[: len(opening)] != opening:
        ids = opening + ids
    return ids[:tokens]


def _plain(tokenizer: "PreTrainedTokenizerBase", text: str, *, special: bool = False) -> list[int]:
    # verbose=False: no warning that the text is longer than the model's maximum, which is the point of it
    encoded = tokenizer(text, add_special_tokens=special, truncation=False, padding=False, verbose=False)
    return list(encoded["input_ids"])


def _opening(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """The ids that the tokenizer puts before a text, found by what it puts around the start of this one."""
    for piece in (text[:256], text):  # a piece that a normaliser strips to nothing tells nothing
        bare, dressed = _plain(tokenizer, piece), _plain(tokenizer, piece, special=True)
        for start in range(len(dressed) - len(bare) + 1) if bare else ():
            if dressed[start : start + len(bare)] == bare:
                return dressed[:start]
    raise ModelError(
        "this tokenizer encodes a text differently with its special tokens: such tokenizers are not supported"
    )


def replace_first(tokenizer: "PreTrainedTokenizerBase", ids: Sequence[int], written: str) -> list[int]:
    r"""The ids with the first four replaced by the one token of `written` (`\n`, `\r`, `\t` and `\\` are
    escapes)."""
    string = re.sub(r"\\([nrt\\])", lambda match: _ESCAPES[match[1]], written)
    token = _plain(tokenizer, string)
    if len(token) != 1:
        # sentencepiece puts a space before every text; behind a letter, the string stands alone
        bare = _plain(tokenizer, "a")
        token = _plain(tokenizer, "a" + string)[len(bare) :]
        if _plain(tokenizer, "a" + string)[: len(bare)] != bare or len(token) != 1:
            raise InputError(
                f"--replace-first {string!r} is {len(_plain(tokenizer, string))} tokens with this "
                "tokenizer: give a string that is one"
            )
    if token[0] == tokenizer.unk_token_id and string != tokenizer.unk_token:
        raise InputError(
            f"--replace-first {string!r} is unknown to this tokenizer: give a string that is one token"
        )
    if len(ids) < REPLACED:
        raise InputError(
            f"--replace-first replaces {REPLACED} tokens and the text has {len(ids)}: give a longer text"
        )
    return token * REPLACED + list(ids[REPLACED:])
