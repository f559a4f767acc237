"""The Triton kernel of one decode step against a plain loop: on a card where there is one, else in the interpreter.

Skipped only where Triton is not installed. Every case fills empty slots, and all storage beside the entries, with NaN,
points them at a row of NaN in the tables, and makes their distances absurd.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from naive.decode import naive_decode
from sinkpin.attention import kernel

ON_CARD = torch.cuda.is_available() and not os.environ.get("TRITON_INTERPRET")
DEVICE = torch.device("cuda" if ON_CARD else "cpu")
INTERPRETED = {} if ON_CARD else {"TRITON_INTERPRET": "1"}

# Triton decides for good when it is imported whether it interprets; the rest of the suite shall not see the variable.
with mock.patch.dict(os.environ, INTERPRETED):
    pytest.importorskip("triton.language", reason="triton is not installed: pip install triton")

OPTIONS = ("own", "real", "rotation", "far", "softcap", "slopes", "sinks")


@pytest.fixture(autouse=True, scope="module")
def _interpreter() -> Iterator[None]:
    with mock.patch.dict(os.environ, INTERPRETED):
        yield


def case(
    *options: str,
    batch: int = 2,
    kv_heads: int = 2,
    group: int = 3,
    key_dim: int = 24,
    value_dim: int = 20,
    entries: int = 37,
    rotary_dim: int = 16,
    interleaved: bool = False,
    per_head: bool = True,
    dtype: torch.dtype = torch.float32,
    sharp: float = 1.0,
    seed: int = 0,
) -> dict[str, Any]:
    """Arguments of `decode` with these options. Scores are `sharp` wide, `per_head` slots differ by KV head."""
    random = torch.Generator().manual_seed(seed)
    heads, slot_heads = kv_heads * group, kv_heads if per_head else 1

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random).to(dtype)

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=random)

    def inside(x: Tensor) -> Tensor:
        """`x` as part of a larger storage of NaN, with a stride in every dimension but those of ordinary tensors."""
        batch, heads, n, d = x.shape
        storage = torch.full((batch, n + 3, heads + 1, 2 * d), torch.nan, dtype=dtype)
        view = storage[:, 1 : n + 1, 1:, ::2].transpose(1, 2)
        view.copy_(x)
        return view

    args: dict[str, Any] = {
        "q": normal(batch, heads, key_dim),
        "keys": inside(normal(batch, kv_heads, entries, key_dim)),
        "values": inside(normal(batch, kv_heads, entries, value_dim)),
        "scale": sharp * key_dim**-0.5,
    }
    if "own" in options:
        args["own"] = (normal(batch, kv_heads, key_dim), normal(batch, kv_heads, value_dim))
    if "rotation" in options:
        angles = 3.0 * torch.randn(entries + 5, rotary_dim // 2, generator=random)
        angles[-1] = torch.nan
        rows = integers(entries + 4, batch, slot_heads, entries)
        args["rotation"] = (angles.cos(), angles.sin(), rows, interleaved)
    if "far" in options:
        args["far"] = (normal(batch, heads, key_dim), integers(4, batch, 1, entries) == 0)
    if "softcap" in options:
        args["softcap"] = 2.0
    if "slopes" in options:
        args["slopes"] = torch.rand(heads, generator=random)
        args["distances"] = integers(9, batch, slot_heads, entries)
    if "sinks" in options:
        args["sinks"] = normal(heads)
    if "real" in options:
        real = args["real"] = integers(3, batch, slot_heads, entries) > 0
        if "own" not in options and "sinks" not in options:
            real[..., :1] = True  # a row without any entry is a test of its own
        empty = ~real.expand(batch, kv_heads, entries)
        args["keys"][empty] = torch.nan
        args["values"][empty] = torch.nan
        if "rotation" in args:
            args["rotation"][2][~real] = entries + 4
        if "distances" in args:
            args["distances"][~real] = 10**9
    return args


def moved(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x if DEVICE.type == "cpu" else x.to(DEVICE)
    return tuple(map(moved, x)) if isinstance(x, tuple) else x


def check(args: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Runs both and compares them; returns the kernel's outputs and attention paid."""
    out, paid = kernel.decode(**{name: moved(x) for name, x in args.items()}, mass=True)
    assert paid is not None
    out, paid = out.cpu(), paid.cpu()
    expected_out, expected_paid = naive_decode(**args)
    dtype = args["q"].dtype
    assert out.dtype == dtype and paid.dtype == torch.float32
    # The arithmetic is fp32 whatever is stored, so only the output is rounded: by one unit, as the interpreter may
    # round towards zero.
    rounding = 0.0 if dtype == torch.float32 else torch.finfo(dtype).eps
    torch.testing.assert_close(paid.double(), expected_paid, rtol=0, atol=1e-5)
    torch.testing.assert_close(out.double(), expected_out, rtol=rounding, atol=1e-5)
    return out, paid


@pytest.mark.parametrize(
    "options",
    [(), *((option,) for option in OPTIONS), ("own", "sinks"), ("rotation", "far", "real"), OPTIONS],
    ids=lambda options: "+".join(options) or "plain",
)
def test_each_option(options: tuple[str, ...]) -> None:
    check(case(*options))


def test_slots_that_all_kv_heads_share() -> None:
    check(case(*OPTIONS, per_head=False))


# Not shrunk: sizes are small already, and shrinking would take the interpreter minutes.
@settings(max_examples=30, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(data=st.data())
def test_any_sizes_and_options(data: st.DataObject) -> None:
    draw = data.draw
    options = draw(st.sets(st.sampled_from(OPTIONS)), "options")
    key_dim = draw(st.sampled_from([8, 16, 20, 80, 96]), "key_dim")
    sizes = {
        "batch": draw(st.integers(1, 2), "batch"),
        "kv_heads": draw(st.integers(1, 2), "kv_heads"),
        "group": draw(st.sampled_from([1, 2, 3, 8, 17]), "group"),
        "value_dim": draw(st.sampled_from([8, 20, 80]), "value_dim"),
        "entries": draw(st.integers(1, 50), "entries"),
        "rotary_dim": 2 * draw(st.integers(1, key_dim // 2), "half of rotary_dim"),
    }
    flags = {name: draw(st.booleans(), name) for name in ("interleaved", "per_head")}
    tile = draw(st.sampled_from([1, kernel._TILE]), "tile")  # 1: blocks of 16, so that there are several
    with mock.patch.object(kernel, "_TILE", tile):
        check(case(*options, key_dim=key_dim, **sizes, **flags, seed=draw(st.integers(0, 99), "seed")))


@pytest.mark.parametrize("group", [1, 3, 8, 16])
@pytest.mark.parametrize(("key_dim", "value_dim"), [(80, 96), (64, 64), (96, 128)])
def test_heads_of_real_models(group: int, key_dim: int, value_dim: int) -> None:
    args = case(
        *("own", "rotation", "real", "far"),
        **{"batch": 1, "group": group, "key_dim": key_dim, "value_dim": value_dim, "rotary_dim": key_dim},
    )
    check(args)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [2, 12, 24])
def test_rotation(rotary_dim: int, interleaved: bool) -> None:
    check(case("rotation", rotary_dim=rotary_dim, interleaved=interleaved))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [(), OPTIONS], ids=["plain", "all"])
def test_stored_in_half_precision(dtype: torch.dtype, options: tuple[str, ...]) -> None:
    check(case(*options, dtype=dtype))


def test_stored_smaller_than_the_query() -> None:
    args = case("own", "rotation")
    args["keys"], args["values"] = args["keys"].bfloat16(), args["values"].half()
    check(args)


@pytest.mark.parametrize("options", [(), ("own",), ("sinks",)], ids=["plain", "own", "sinks"])
def test_scores_whose_exponentials_overflow(options: tuple[str, ...]) -> None:
    """Kills: a softmax that does not subtract the highest score, or does not rescale when a higher one comes."""
    args = case(*options, entries=50)
    args["keys"] *= torch.linspace(1, 60, 50)[:, None]  # the later, the higher
    if options == ("sinks",):
        args["sinks"] *= 100
    with mock.patch.object(kernel, "_TILE", 1):
        check(args)


def test_empty_slots_are_as_if_they_were_not_there() -> None:
    args = case("real", "rotation", "slopes", batch=1, per_head=False)
    out, paid = check(args)
    real = args["real"][0, 0]
    fewer = {**args, "real": None, "keys": args["keys"][:, :, real], "values": args["values"][:, :, real]}
    cos, sin, rows, interleaved = args["rotation"]
    fewer["rotation"] = (cos, sin, rows[..., real], interleaved)
    fewer["distances"] = args["distances"][..., real]
    fewer_out, fewer_paid = check(fewer)
    torch.testing.assert_close(out, fewer_out)
    torch.testing.assert_close(paid[..., real], fewer_paid)
    assert (paid[..., ~real] == 0).all()


@pytest.mark.parametrize("options", [(), ("sinks",), ("own",)], ids=["plain", "sinks", "own"])
def test_a_row_without_entries(options: tuple[str, ...]) -> None:
    args = case("real", "rotation", *options, entries=40)
    args["real"][0] = False
    with mock.patch.object(kernel, "_TILE", 1):
        out, paid = check(args)
    if options == ("own",):
        assert torch.equal(out[0], args["own"][1][0].repeat_interleave(3, 0)) and (paid[0, :, -1] == 1).all()
    else:
        assert (out[0] == 0).all() and (paid[0] == 0).all()


@pytest.mark.parametrize("blocks_before", [1, 2])
def test_a_row_whose_first_blocks_are_empty(blocks_before: int) -> None:
    args = case("real", entries=50)
    args["real"][0, :, : 16 * blocks_before] = False
    args["real"][0, :, -2:] = True
    args["keys"][0, :, -2:], args["values"][0, :, -2:] = 0.5, 0.25
    with mock.patch.object(kernel, "_TILE", 1):
        check(args)


def test_an_empty_cache_returns_the_tokens_own_value() -> None:
    args = case("own", "rotation", entries=0)
    out, paid = check(args)
    torch.testing.assert_close(out, args["own"][1].repeat_interleave(3, 1))
    assert paid.shape == (2, 2, 1) and (paid == 1).all()


def test_what_is_paid_sums_to_one_unless_learned_sinks_take_some() -> None:
    assert check(case("own", "real"))[1].sum(-1).sub(1).abs().max() < 1e-5
    assert check(case("own", "real", "sinks"))[1].sum(-1).max() < 1


def test_outputs_do_not_depend_on_whether_mass_is_asked_for() -> None:
    args = {name: moved(x) for name, x in case(*OPTIONS).items()}
    out, paid = kernel.decode(**args)
    assert paid is None
    assert torch.equal(out, kernel.decode(**args, mass=True)[0])


class Recorded(TorchDispatchMode):
    """Which operators torch runs, and in place of the kernel which arguments it is started with."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[str] = set()
        self.arguments: dict[str, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        return lambda *args, **sizes: self.arguments.update({"args": args, "sizes": sizes})


def recorded(args: dict[str, Any]) -> Recorded:
    with Recorded() as record, mock.patch.object(kernel, "_kernel", return_value=record):
        kernel.decode(**args, mass=True)
    return record


def test_starting_the_kernel_neither_reads_nor_copies() -> None:
    """Kills: a length or a maximum asked of the device, and storage copied for its strides at every step."""
    assert recorded(case(*OPTIONS)).operators <= {"expand", "new_empty"}


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sinkpin.attention import kernel

step = kernel._kernel()
types, sizes, capability = eval(sys.argv[1])
signature = {name: "constexpr" if kind is None else kind for name, kind in zip(step.arg_names, types)}
signature |= dict.fromkeys(sizes, "constexpr")
constants = dict.fromkeys((name for name, kind in signature.items() if kind == "constexpr")) | sizes
made = triton.compile(ASTSource(step, signature, constants), target=GPUTarget("cuda", capability, 32))
print(len(made.asm["cubin"]), "bytes")
"""
KINDS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "bool": "i1", "int64": "i64"}


@pytest.mark.parametrize(
    ("options", "group", "capability"),
    [
        (OPTIONS, 3, 80),
        pytest.param((), 1, 90, marks=pytest.mark.slow),
        pytest.param(OPTIONS, 16, 90, marks=pytest.mark.slow),
    ],
    ids=["all-3-80", "plain-1-90", "all-16-90"],
)
def test_compiles_for_cards(options: tuple[str, ...], group: int, capability: int, tmp_path: Path) -> None:
    """The compiler refuses much that the interpreter accepts; it needs no card."""
    args = case(*options, group=group, key_dim=64, value_dim=64, rotary_dim=48, dtype=torch.bfloat16)
    started = recorded(args).arguments

    def kind(x: Any) -> str | None:
        if isinstance(x, Tensor):
            return "*" + KINDS[str(x.dtype).removeprefix("torch.")]
        return None if x is None else "fp32" if isinstance(x, float) else "i32"

    sizes = {name: x for name, x in started["sizes"].items() if name != "num_warps"}
    given = repr((tuple(map(kind, started["args"])), sizes, capability))
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    made = subprocess.run(
        [sys.executable, "-c", COMPILE, given],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert made.returncode == 0, made.stderr
    assert int(made.stdout.split()[0]) > 1000


@pytest.mark.parametrize(("interpret", "answer"), [("1", True), ("0", False), ("", False)])
def test_available_on_a_cpu_where_the_interpreter_is_on(interpret: str, answer: bool) -> None:
    with mock.patch.dict(os.environ, {"TRITON_INTERPRET": interpret}):
        assert kernel.available(torch.device("cpu")) == answer


def test_importable_but_not_available_without_triton() -> None:
    """Kills: importing triton with the module, too, for here the import would fail."""
    code = (
        "import sys, torch; sys.modules['triton'] = None\n"
        "from sinkpin.attention import kernel; print(kernel.available(torch.device('cpu')))"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    made = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert made.stdout.strip() == "False", made.stderr


if ON_CARD:

    def test_captured_in_a_graph() -> None:
        args = {name: moved(x) for name, x in case(*OPTIONS).items()}
        expected, expected_paid = kernel.decode(**args, mass=True)  # compiles it
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out, paid = kernel.decode(**args, mass=True)
        graph.replay()
        assert torch.equal(out, expected) and torch.equal(paid, expected_paid)
