"""Which tokens are outliers: planted sinks are found, and where there are none, none is."""

import numpy as np
import pytest

from sinkpin.attention.outliers import outliers

LAYERS, HEADS, TOKENS = 6, 4, 800


def text(seed=0, spread=0.5):
    """Mass that falls with the place and rises at the end, as recency makes it, and is lognormal around that."""
    rng = np.random.default_rng(seed)
    place = np.arange(TOKENS)
    trend = 0.02 / np.sqrt(1 + place) + 0.02 / np.sqrt(TOKENS - place)
    mass = trend * rng.lognormal(0, spread, (1, 1, TOKENS)) * rng.lognormal(0, 0.2, (LAYERS, HEADS, TOKENS))
    mass[..., -32:] = np.nan
    return mass


def test_planted_sinks_are_found_wherever_they_are():
    mass = text()
    for index in (0, 137, 700):
        mass[:, :, index] = 0.4
    found = outliers(mass)
    assert found.found == found.sinks == (0, 137, 700)
    assert (found.heads[[0, 137, 700]] == LAYERS * HEADS).all() and found.heads.sum() == 3 * LAYERS * HEADS
    assert (found.z_of_layers[:, 137] >= found.cut).all()
    assert np.isnan(found.z[-32:]).all() and np.isnan(found.q[-32:]).all()


def test_a_sink_of_one_layer_is_an_outlier_there():
    mass = text()
    mass[2, :, 300] = 0.9
    found = outliers(mass)
    assert found.found == (300,)
    assert [layer for layer in range(LAYERS) if found.z_of_layers[layer, 300] >= found.cut] == [2]
    assert found.most[300] == pytest.approx(0.9) and found.mean[300] < 0.2


def test_an_outlier_that_no_head_pays_much_is_no_sink():
    mass = text(spread=0.1)
    mass[:, :, 300] = 0.1
    found = outliers(mass)
    assert found.found == (300,) and found.sinks == ()
    assert outliers(mass, epsilon=0.05).sinks == (300,)


def test_false_discoveries_are_as_rare_as_asked():
    """Lognormal mass is what the null says, so of 200 texts without a sink few may show one."""
    wrong = [bool(outliers(text(seed), rate=0.05).found) for seed in range(200)]
    assert np.mean(wrong) < 0.12


def test_the_place_alone_makes_no_outlier():
    """The first and the last tokens receive ten times the mass of those between, and are none."""
    mass = text(spread=0.3)
    found = outliers(mass)
    assert found.found == ()
    assert np.nanmax(found.trend) > 5 * np.nanmin(found.trend)


def test_uniform_attention_has_none():
    mass = np.full((2, 2, 100), 0.01)
    found = outliers(mass)
    assert found.found == () and found.how == "constant" and np.isinf(found.cut)


def test_half_the_tokens_alike_is_no_trouble():
    """Where the median absolute deviation is 0 another scale is used, and named."""
    mass = np.full((2, 2, 100), 0.01)
    mass[..., 50] = 0.5
    found = outliers(mass)
    assert found.how == "mean AD" and found.found == (50,)


def test_nothing_measured():
    found = outliers(np.full((2, 2, 10), np.nan))
    assert found.found == () and found.how == "nothing was measured"


@pytest.mark.parametrize("tokens", [1, 2, 3, 9, 17])
def test_few_tokens(tokens):
    mass = np.full((2, 2, tokens), 0.1)
    mass[..., 0] = 0.6
    found = outliers(mass)
    assert found.z.shape == (tokens,) and not np.isnan(found.z).any()
