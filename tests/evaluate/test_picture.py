"""The picture as a file, and the arithmetic behind it. How it looks is for eyes."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkpin.errors import InputError
from sinkpin.evaluate.labels import shortened, spread
from sinkpin.evaluate.panel import binned, limits, y_ticks
from sinkpin.evaluate.picture import BINS, draw

MANY = {"full": 22.0} | {f"h2o[seed={i}]-{8 * i}+{i % 2}": 20.0 + i for i in range(1, 30)}

POLICIES = ["window", "h2o", "tova", "snapkv", "keydiff", "pyramidkv", "lagkv", "expected"]
GRID = {"full": 22.0} | {
    f"{'streaming' if policy == 'window' and sinks else policy}-{budget}+{sinks}": 20.0
    + number
    + 9 / (1 + sinks)
    + 4 * (budget == "10%")
    for budget in ("25%", "10%")
    for number, policy in enumerate(POLICIES)
    for sinks in (0, 4)
}


@pytest.mark.parametrize(
    "perplexities",
    [
        {"full": 22.0},
        {"full": 22.0, "window-64+0": 230.0, "streaming-64+4": 31.0},
        {"full": 49_152.0, "window-64+0": 49_152.0, "streaming-64+4": 3e6},
        MANY,
        GRID,
    ],
    ids=["full", "three", "uniform and worse", "thirty", "grid"],
)
@pytest.mark.parametrize("suffix", [".png", ".svg", ".PNG"])
@pytest.mark.filterwarnings("error")
def test_draws(make, tmp_path, perplexities, suffix):
    path = tmp_path / "new folder" / f"picture{suffix}"
    draw(make(perplexities), path)
    assert path.read_bytes()[:8] == (b"\x89PNG\r\n\x1a\n" if suffix.lower() == ".png" else b"<?xml ve")
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("streaming-64+4", "streaming-64+4"),
        ("adakv[base=snapkv,base.kernel=5]-32+4", "adakv[base=snapkv,base.kern…]-32+4"),
        ("lagkv[lag=4,across=True]-64MiB+4/original", "lagkv[lag=4,acr…]-64MiB+4/original"),
        (
            "window-64+4" + "".join(f"+{n}:{n + 1}" for n in range(20, 60, 3)),
            "window-64+4+20:2…53:54+56:57+59:60",
        ),
    ],
)
def test_a_long_name_is_cut_where_it_says_least(name, shown):
    """Kills: names cut at their end, where the budget and the pins stand."""
    assert shortened(name) == shown
    assert len(shown) <= 34


@pytest.mark.parametrize("scored", [1, 2, 3, 39, 41])
def test_draws_short_texts(make, tmp_path, scored):
    draw(make(scored=scored), tmp_path / "p.png")


def test_the_background_is_opaque_white(make, tmp_path):
    from matplotlib.image import imread

    draw(make(), tmp_path / "p.png")
    pixels = imread(tmp_path / "p.png")
    assert (pixels[0, 0, :3] == 1).all()
    assert pixels.shape[2] == 3 or (pixels[..., 3] == 1).all()
    assert pixels.shape[1] == 1600


def test_the_same_result_is_the_same_file(make, tmp_path):
    for name in ("a.svg", "b.svg"):
        draw(make(), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_callers_matplotlib_is_left_alone(make, tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw(make(), tmp_path / "p.png")
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


@pytest.mark.parametrize("name", ["p.jpg", "p", "png"])
def test_another_suffix_is_one_line(make, tmp_path, name):
    with pytest.raises(InputError, match=r"pictures are \.png or \.svg"):
        draw(make(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_bins_of_nothing_are_one_line(make, tmp_path):
    with pytest.raises(InputError, match="bins of 0 tokens"):
        draw(make(), tmp_path / "p.png", bin_tokens=0)


def test_a_place_that_cannot_be_written_is_one_line(make, tmp_path):
    (tmp_path / "p.png").mkdir()
    with pytest.raises(InputError, match="cannot write"):
        draw(make(), tmp_path / "p.png")
    assert [path.name for path in tmp_path.iterdir()] == ["p.png"]


def test_without_matplotlib_one_line_says_how(tmp_path):
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from pathlib import Path\n"
        "from sinkpin.evaluate.picture import draw\n"
        "try: draw(None, Path(sys.argv[1]))\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "p.png")], capture_output=True, text=True, check=True
    )
    assert "`pip install matplotlib`" in done.stdout


def naive_bins(positions, losses, width):
    """Each bin and its neighbours, one token at a time."""
    groups: dict[int, list[int]] = {}
    for index, position in enumerate(positions):
        groups.setdefault((position - positions[0]) // width, []).append(index)
    last = max(groups)
    if last > 0 and len(groups[last]) < width / 2:
        groups.setdefault(last - 1, []).extend(groups.pop(last))
    ordered = [groups[key] for key in sorted(groups)]
    middles, perplexities = [], []
    for place, indices in enumerate(ordered):
        middles.append(sum(positions[i] for i in indices) / len(indices))
        around = [i for near in ordered[max(place - 1, 0) : place + 2] for i in near]
        perplexities.append(np.exp(sum(float(losses[i]) for i in around) / len(around)))
    return middles, perplexities


@given(
    positions=st.lists(st.integers(0, 500), min_size=1, max_size=80, unique=True).map(sorted),
    width=st.integers(1, 120),
    seed=st.integers(0, 9),
)
def test_bins_against_a_loop(positions, width, seed):
    losses = np.random.default_rng(seed).uniform(0, 9, len(positions)).astype(np.float32)
    middles, perplexities = binned(np.array(positions, np.int64), losses, width)
    expected = naive_bins(positions, losses, width)
    np.testing.assert_allclose(middles, expected[0])
    np.testing.assert_allclose(perplexities, expected[1], rtol=1e-6)


def test_a_uniform_model_is_a_flat_line(make):
    losses = np.full(4000, np.log(49_152), np.float32)
    middles, perplexities = binned(np.arange(96, 4096, dtype=np.int64), losses, 100)
    assert len(middles) == BINS
    np.testing.assert_allclose(perplexities, 49_152, rtol=1e-5)


@given(
    wanted=st.lists(st.floats(0, 300), min_size=1, max_size=20).map(sorted),
    gap=st.floats(1, 15),
)
def test_labels_keep_their_order_and_distance(wanted, gap):
    places = spread(wanted, gap=gap, low=0, high=300)
    assert all(after - before >= gap - 1e-6 for before, after in pairwise(places))
    assert places[0] >= -1e-9
    assert places[-1] <= 300 + 1e-6
    if all(after - before >= gap for before, after in pairwise(wanted)):
        np.testing.assert_allclose(places, wanted, atol=1e-6)  # nothing moves that has room


@given(low=st.floats(1e-2, 1e6), factor=st.floats(1.0, 1e4))
def test_there_are_always_two_ticks_and_few(low, factor):
    low, high = limits([(np.zeros(2), np.array([low, low * factor]))])
    assert high / low >= 1.19
    ticks = y_ticks(low, high)
    assert 2 <= len(ticks) <= 12
    assert all(low * (1 - 1e-9) <= tick <= high * (1 + 1e-9) for tick in ticks)
