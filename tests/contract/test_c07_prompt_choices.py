"""C7 for policies that choose once: what is held when the prompt ends is what the published formula chooses, and from
then on that is frozen and decoded tokens slide, set for set after every forward. Near-ties apart, as in `chosen_sets`.
"""

from functools import partial
from itertools import product

import pytest
import torch

import families
from contract.cells import POLICIES, assert_close, feed, origins
from naive import evidence
from naive.pyramidkv import pyramidkv_choice
from naive.snapkv import snapkv_choice
from naive.streaming import pinned

CHOICES = {"snapkv": snapkv_choice, "pyramidkv": pyramidkv_choice}
PROMPT = [name for name, cell in POLICIES.items() if cell.kind == "prompt"]
TOKENS = 75
SIZES = {
    "decode": [31, *[1] * 44],
    "chunks": [43, 1, 1, 13, 1, 2, 1, 11, 2],
    "below": [11, *[1] * 30, 17, *[1] * 17],
    "whole": [75],
    "by1": [1] * TOKENS,
}
PINS = {"pins0": (0, ()), "pins4": (4, ()), "spans": (0, ((9, 12), (20, 23)))}
# The rest of the product is in the long run.
EVERYDAY = {
    ("original", "pins4", "decode"),
    ("original", "spans", "chunks"),
    ("original", "pins0", "below"),
    ("original", "pins4", "whole"),
    ("slots", "spans", "decode"),
    ("slots", "pins4", "by1"),
}


def cases():
    for frame, pins, sizes in product(("original", "slots"), PINS, SIZES):
        marks = () if (frame, pins, sizes) in EVERYDAY else (pytest.mark.slow,)
        yield pytest.param(frame, pins, sizes, marks=marks, id=f"{frame}-{pins}-{sizes}")


def compare(name, model, ids, sizes, *, budget, sinks=4, spans=(), frame="original", choose=None, **options):
    """Feed a cache, noting what every layer and head holds after each forward; then the plain loop must agree."""
    cell = POLICIES[name]
    layers = range(model.config.num_hidden_layers)
    history, got, start = [], [], 0
    with cell.cache(model, budget=budget, sinks=sinks, pins=list(spans), frame=frame, **options) as cache:
        for size in sizes:
            got.append(feed(model, cache, ids[:, start : start + size]))
            start += size
            heads = range(cache.origins().shape[1])
            history.append([[origins(cache, layer, head=head) for head in heads] for layer in layers])
    choose = choose or CHOICES[name]
    choice = choose(budget, pinned(sinks, spans))
    wanted = evidence.walk(model, ids[0], sizes, choice, frame=frame, follow=history)
    assert wanted.near_ties <= 1, f"{wanted.near_ties} near-ties in one run are no chance"
    assert_close(torch.cat(got, 1)[0], wanted.logits, 1e-4)
    return wanted


@pytest.mark.parametrize("name", PROMPT)
@pytest.mark.parametrize(("frame", "pins", "sizes"), list(cases()))
def test_chosen_set_for_chosen_set(name, frame, pins, sizes):
    """Two query heads on each of two KV heads, an odd budget, prompts above and below it.

    Kills: a second choice; a window that does not slide, or slides into the frozen part; attention of the last query
    alone; pins that take part; neighbours taken across the window's edge.
    """
    model, ids, (sinks, spans) = families.build(), families.tokens(TOKENS), PINS[pins]
    wanted = compare(name, model, ids, SIZES[sizes], budget=19, sinks=sinks, spans=spans, frame=frame)
    kept = wanted.origins
    assert sum(len(head) for heads in kept for head in heads) == 4 * 19
    assert all(pinned(sinks, spans) <= set(head) for heads in kept for head in heads)
    assert all(TOKENS - 1 in head for heads in kept for head in heads), "the newest slides in"


@pytest.mark.parametrize("name", PROMPT)
@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("budget", [5, 6, 7, 24, 41])
def test_groups_and_budgets(name, kv_heads, budget):
    """Groups of four and of one; rooms of one, two and three beside four pins, and of more than half of what is seen.

    Kills: a window of nothing; a room of one in which the prompt's last token stays for ever.
    """
    sizes = [37, *[1] * 20, 4]
    model, ids = families.build(kv_heads=kv_heads), families.tokens(61, seed=1)
    wanted = compare(name, model, ids, sizes, budget=budget)
    assert all(60 in head for heads in wanted.origins for head in heads)


@pytest.mark.parametrize(
    "options", [{"window_size": 3}, {"kernel": 1}, {"kernel": 5, "pool": "avg"}, {"kernel": 31}]
)
def test_options(options):
    model, ids = families.build(), families.tokens(60, seed=2)
    sizes = [41, *[1] * 12, 7]
    compare("snapkv", model, ids, sizes, budget=19, choose=partial(snapkv_choice, **options), **options)


@pytest.mark.parametrize("frame", ["original", "slots"])
@pytest.mark.parametrize("chunks", [[40], [13, 27], [1] * 40, [39, 1], [3, 36, 1], [33, 9]])
@pytest.mark.parametrize("name", PROMPT)
def test_a_prompt_in_several_forwards(name, chunks, frame):
    """With `prompt_length` it may come in pieces: nothing is evicted before its end, and the choice does not depend on
    the pieces (but for the last, which may overshoot). Queries of earlier pieces are looked back on.

    Kills: a window cut off at the last forward's first query.
    """
    model, ids = families.build(), families.tokens(60, seed=3)
    total = sum(chunks)
    compare(
        name,
        model,
        ids,
        [*chunks, *[1] * (60 - total)],
        budget=21,
        frame=frame,
        choose=partial(CHOICES[name], prompt=40),
        prompt_length=40,
    )


@pytest.mark.parametrize("name", PROMPT)
@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3", "gpt_neox"])
def test_families(name, family):
    """Biases, query and key norms, partial rotary: the window's queries are the model's."""
    sizes = [33, *[1] * 9, 5]
    compare(name, families.build(family), families.tokens(47, seed=2), sizes, budget=16, sinks=2)


@pytest.mark.parametrize("name", PROMPT)
def test_many_layers_a_long_prompt(name):
    """Five layers, so that the pyramid has steps, and a window of 32 that does not give way in all of them."""
    model, ids = families.build(layers=5, seed=3), families.tokens(300, seed=3)
    wanted = compare(name, model, ids, [221, *[1] * 60, 19], budget=101)
    lengths = [len(heads[0]) for heads in wanted.origins]
    assert sum(lengths) == 5 * 101
    assert lengths == sorted(lengths, reverse=True)
    assert (len(set(lengths)) == 5) == (name == "pyramidkv")


@pytest.mark.parametrize("spans", [((34, 37),), ((33, 41),), ((30, 45),), ((50, 53),), ((38, 44), (55, 57))])
def test_pins_in_the_window_and_after_the_prompt(spans):
    """A pinned span in the prompt's last tokens (a template's markers) takes no slot from those that slide; one that
    comes later finds its place, and evicts neither sinks nor the newest."""
    model, ids = families.build(), families.tokens(70, seed=4)
    wanted = compare("snapkv", model, ids, [41, *[1] * 29], budget=23, spans=spans)
    for heads in wanted.origins:
        for head in heads:
            assert pinned(4, spans) <= set(head) and len(head) == 23 and 69 in head


@pytest.mark.parametrize("name", PROMPT)
def test_each_padded_row_chooses_alone(name):
    """Rows of 40, 17 and 9 tokens in one batch, the last below the budget: each as the loop alone, through decode."""
    cell, model = POLICIES[name], families.build()
    prompts = [families.tokens(40)[0], families.tokens(17, seed=1)[0], families.tokens(9, seed=5)[0]]
    ids, mask = families.pad_left(prompts)
    steps = families.tokens(14, rows=3, seed=2)
    with cell.cache(model, budget=13, sinks=4) as cache:
        feed(model, cache, ids, mask)
        for t in range(14):
            mask = torch.cat([mask, torch.ones(3, 1).long()], 1)
            feed(model, cache, steps[:, t : t + 1], mask)
        for row, prompt in enumerate(prompts):
            text = torch.cat([prompt, steps[row]])
            wanted = evidence.walk(model, text, [len(prompt), *[1] * 14], CHOICES[name](13, pinned(4)))
            held = [[origins(cache, layer, row, head) for head in range(2)] for layer in range(2)]
            assert held == wanted.origins, f"row {row}"
