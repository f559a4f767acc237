"""Who is compared: each peer's script, its options, and the environment it runs in.

The scripts can do more than is listed (`--help` of each); this is what `run.py` runs.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from measure import MEASUREMENTS

HERE = Path(__file__).resolve().parent
REFERENCE = "sinkpin-streaming"
ALL_BUT_TIMING = ",".join(name for name in MEASUREMENTS if name != "decode")


@dataclass(frozen=True)
class Variant:
    """A script and its options; `environment` None is the Python this runs in.

    `slow` holds smaller sizes for one that would take hours, `once` what is measured of it beside the rounds of timing.
    """

    name: str
    script: str
    options: tuple[str, ...] = ()
    environment: str | None = None
    slow: tuple[str, ...] = ()
    once: str = ALL_BUT_TIMING

    def python(self) -> Path | None:
        if self.environment is None:
            return Path(sys.executable)
        folder = HERE / ".venvs" / self.environment
        return folder / "bin" / "python" if (folder / ".ready").exists() else None


VARIANTS = [
    Variant(REFERENCE, "peer_sinkpin.py"),
    # Compiled, only the timing is another one: its first run is thrown away but for the gate.
    Variant("sinkpin-streaming-compiled", "peer_sinkpin.py", ("--compile",), once="decode"),
    Variant("sinkpin-h2o", "peer_sinkpin.py", ("--policy", "h2o")),
    Variant("sinkpin-tova", "peer_sinkpin.py", ("--policy", "tova")),
    Variant("sinkpin-snapkv", "peer_sinkpin.py", ("--policy", "snapkv")),
    Variant("sinkpin-expected", "peer_sinkpin.py", ("--policy", "expected")),
    Variant(
        "transformers-recompute",
        "peer_transformers.py",
        slow=("--block", "2", "--blocks", "4", "--tokens", "1024", "--steps", "64"),
    ),
    Variant("attention-sinks", "peer_attention_sinks.py", environment="attention_sinks"),
    Variant("kvpress-decoding-streaming", "peer_kvpress.py", environment="kvpress"),
    Variant("kvpress-decoding-tova", "peer_kvpress.py", ("--press", "tova"), "kvpress"),
    *(
        Variant(
            f"kvpress-prefill-{press}", "peer_kvpress.py", ("--press", press, "--phase", "prefill"), "kvpress"
        )
        for press in ("streaming", "snapkv", "expected", "tova")
    ),
    Variant("openvino-genai", "peer_openvino.py", environment="openvino"),
    Variant("llama.cpp-f32", "peer_llama_cpp.py", environment="llama_cpp"),
    Variant("llama.cpp-q4_1", "peer_llama_cpp.py", ("--weights", "q4_1"), "llama_cpp"),
]
