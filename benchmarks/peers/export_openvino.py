"""Exports the demo model to OpenVINO's IR, weights as they are (float32), into `.data/openvino`.

Runs in the openvino peer's environment. What is exported is checked to hold a KV cache; the tokenizer is exported too,
since the pipeline will not start without one, but no text is ever tokenised with it (`prepare.py` did).
"""

import shutil
from pathlib import Path

DATA = Path(__file__).resolve().parent / ".data"


def main() -> None:
    from optimum.exporters.openvino import main_export

    target, unfinished = DATA / "openvino", DATA / "openvino.part"
    if (target / "openvino_model.xml").exists() and (target / "openvino_tokenizer.xml").exists():
        return
    for folder in (target, unfinished):
        shutil.rmtree(folder, ignore_errors=True)
    main_export(
        str((DATA / "model").resolve()),
        output=unfinished,
        task="text-generation-with-past",
        stateful=True,
        convert_tokenizer=True,
        library_name="transformers",
    )
    missing = [
        name for name in ("openvino_model.xml", "openvino_tokenizer.xml") if not (unfinished / name).exists()
    ]
    if missing:
        raise SystemExit(
            f"export_openvino.py: the export made no {' and no '.join(missing)}: nothing can be measured"
        )
    unfinished.rename(target)


if __name__ == "__main__":
    main()
