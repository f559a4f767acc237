#!/bin/sh
# Builds the environment of one peer, and what it needs of the demo model in a form of its own.
#
#   benchmarks/peers/setup.sh kvpress              into benchmarks/peers/.venvs/kvpress
#   benchmarks/peers/setup.sh all                  one after the other; one that fails does not stop the rest
#   TORCH='torch==2.13.0' PYTHON=python3.11 benchmarks/peers/setup.sh attention_sinks
#
# PYTHON          makes the environments; attention_sinks wants 3.11 (its transformers has no wheels for newer ones)
# TORCH           any pip requirement: a version, a wheel, a URL
# SINKPIN_PYTHON  a Python with sinkpin[demo] in it; by default that of `make demo`. It writes the text's token ids
#                 and the demo model in the peers' formats into .data/ (prepare.py), and is itself what runs sinkpin.
# JOBS            compilers at once, for llama_cpp (1)
#
# The pins are those each peer asks for, no newer; the reasons stand beside them. TORCH is named in the same command as
# the peer, or what the peer pulls in would replace it by the newest one.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-torch==2.13.0}
SINKPIN_PYTHON=${SINKPIN_PYTHON:-$here/../../.venv/bin/python}
JOBS=${JOBS:-1}
ALL="attention_sinks kvpress openvino llama_cpp"

usage() { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p;}' "$0"; }

case "${1:-}" in
    all)
        failed=
        for name in $ALL; do "$0" "$name" || failed="$failed $name"; done
        [ -z "$failed" ] || { echo "setup.sh: could not build:$failed; the others are ready" >&2; exit 1; }
        exit 0 ;;
    attention_sinks | kvpress | openvino | llama_cpp) name=$1 ;;
    *) usage; exit 2 ;;
esac

[ -x "$SINKPIN_PYTHON" ] || {
    echo "setup.sh: no $SINKPIN_PYTHON: run 'make demo' first, or name a Python with sinkpin[demo] in SINKPIN_PYTHON" >&2
    exit 2
}

venv=$here/.venvs/$name
bin=$venv/bin
install() { "$bin/python" -m pip --disable-pip-version-check --quiet install --no-compile "$@"; }

rm -f "$venv/.ready"
[ -x "$bin/python" ] || "$PYTHON" -m venv "$venv"
echo "==> $name: installing into $venv (minutes, the first time)"

case "$name" in
    attention_sinks)
        # einops: imported, never declared. numpy 2 and a newer accelerate do not go with transformers of 2023.
        install "$TORCH" attention-sinks==0.4.0 transformers==4.34.0 'numpy<2' accelerate==0.24.1 einops setuptools
        "$SINKPIN_PYTHON" "$here/prepare.py" ids legacy
        ;;
    kvpress)
        # transformers: kvpress reads kwargs["cache_position"], which 5.4 no longer passes (KeyError).
        install "$TORCH" kvpress==0.5.5 'transformers==5.2.*'
        "$SINKPIN_PYTHON" "$here/prepare.py" ids
        ;;
    openvino)
        # torchvision comes with optimum but is built for another torch, and then breaks its import.
        install "$TORCH" openvino-genai==2026.4.1 optimum-intel==2.2.0 'transformers==5.5.*'
        "$bin/python" -m pip --quiet uninstall --yes torchvision torchaudio 2>/dev/null || true
        "$SINKPIN_PYTHON" "$here/prepare.py" ids folder
        "$bin/python" "$here/export_openvino.py"
        ;;
    llama_cpp)
        # Built from source (no wheels on PyPI): cmake and a C++ compiler have to be there. Minutes. Half of it is
        # llama.cpp's `common`, which nobody needs here, but the package installs it and cannot be told not to.
        export CMAKE_BUILD_PARALLEL_LEVEL="$JOBS" CMAKE_ARGS="${CMAKE_ARGS:-} -DLLAVA_BUILD=OFF"
        install llama-cpp-python==0.3.36
        "$SINKPIN_PYTHON" "$here/prepare.py" ids gguf
        ;;
esac
touch "$venv/.ready"
echo "==> $name: ready"
