"""TOVA's choice alone: small views worked out by hand, and the published formula as a plain loop."""

import pytest
import torch

from sinkpin.policies.base import View
from sinkpin.policies.tova import TOVA


def view(*recent: list[float]) -> View:
    """One row, one head; `recent` are the last queries' rows, the newest last."""
    return View(
        layer=0,
        origins=torch.arange(len(recent[0]))[None, None],
        seen=len(recent[0]),
        recent=torch.tensor([[list(recent)]]),
    )


def kept(given: View, n: int) -> list[int]:
    return sorted(TOVA().keep(given, n)[0, 0].tolist())


def test_the_most_attended() -> None:
    assert kept(view([0.3, 0.1, 0.4, 0.2]), 2) == [0, 2]


def test_the_newest_is_not_favoured() -> None:
    """As in the authors' code. Kills: a port that forces the newest entry to stay."""
    assert kept(view([0.3, 0.3, 0.3, 0.1]), 3) == [0, 1, 2]
    assert kept(view([0.6, 0.4]), 1) == [0]


def test_equal_attention_keeps_the_newer() -> None:
    assert kept(view([0.2, 0.2, 0.2, 0.2, 0.2]), 2) == [3, 4]
    assert kept(view([0.0, 0.0, 1.0, 0.0]), 2) == [2, 3]


def test_only_the_last_row_counts() -> None:
    """Kills: a mean over the rows, or the first of them."""
    assert kept(view([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.1, 0.2, 0.7]), 1) == [2]
    assert TOVA().window(7) == TOVA().window(1) == 1


def test_one_set_a_layer() -> None:
    assert not TOVA.per_head
    assert TOVA.needs == {"recent"}


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_the_published_formula(n: int) -> None:
    """Mean over all six query heads of the last query's probabilities, then the best n."""
    generator = torch.Generator().manual_seed(n)
    attention = torch.randn(2, 6, 9, generator=generator).softmax(-1)
    given = View(
        layer=0,
        origins=torch.arange(9).expand(2, 1, -1),
        seen=9,
        recent=attention.mean(1)[:, None, None],
    )
    got = TOVA().keep(given, n)
    for row in range(2):
        means = [sum(attention[row, head, key].item() for head in range(6)) / 6 for key in range(9)]
        ranked = sorted(range(9), key=lambda key: (means[key], key), reverse=True)
        assert sorted(got[row, 0].tolist()) == sorted(ranked[:n])
