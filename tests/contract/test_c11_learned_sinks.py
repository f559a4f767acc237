"""C11: learned sinks (gpt-oss) take their share of every softmax, in prefill and in decode, and return nothing."""

import pytest
import torch

import families
from contract.cells import BUDGET, assert_close, every_cell, feed_and_see, feed_in
from naive import dense
from naive.streaming import pinned, visible

WINDOW = 8
CHUNKS = {"by1": [1] * 40, "by7": [7] * 5 + [5], "prefill and decode": [30, *[1] * 10], "all": [40]}


def learned_sink_cells(*kinds):
    return every_cell(*kinds, where=lambda family: family.config is families.FAMILIES["gpt_oss"].config)


def attention_modules(model):
    return [layer.self_attn for layer in model.base_model.layers]


class RowSums:
    """Keys are zero and values are one: what attention returns is the sum of a row of its weights, which is
    n / (n + exp(sink)) over n visible keys."""

    def __init__(self, model):
        self.seen = [[] for _ in attention_modules(model)]
        with torch.no_grad():
            for module, seen in zip(attention_modules(model), self.seen, strict=True):
                for projection, value in ((module.k_proj, 0.0), (module.v_proj, 1.0)):
                    projection.weight.zero_()
                    projection.bias.fill_(value)
                module.o_proj.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))

    def forget(self):
        """What the probing forward left."""
        for seen in self.seen:
            seen.clear()

    def of(self, layer, heads):
        """[T, heads], every head dimension alike."""
        rows = torch.cat(self.seen[layer], 1)[0].view(-1, heads, 8)
        assert_close(rows, rows[..., :1].expand_as(rows), 1e-6)
        return rows[..., 0]


@learned_sink_cells()
@pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS)
def test_rows_sum_to_less_than_one(policy, family, sizes):
    """Each row of weights sums to n / (n + exp(sink)), in full and sliding layers, for each head its own sink.

    Kills: sinks left out in decode only, or in prefill only; one head's sink for all; a sink per chunk of keys; a sink
    that is a key among others and brings a value.
    """
    model = families.build(family)
    with torch.no_grad():
        for module in attention_modules(model):
            module.sinks.copy_(torch.tensor([-1.0, 0.5, 2.0, 3.0]))
    sums = RowSums(model)
    ids = families.tokens(40)
    with policy.cache(model, frame="original") as cache:
        sums.forget()
        _, masks = feed_and_see(policy, model, cache, ids, sizes, families.windows(model))
    for layer, module in enumerate(attention_modules(model)):
        n = masks[layer].sum(-1).float().expand(4, -1).T
        if policy.kind == "position" and layer == 0:
            rule = [len(visible(t, BUDGET, pinned(policy.sinks))) for t in range(40)]
            assert n[:, 0].tolist() == rule
        wanted = n / (n + module.sinks.detach().exp())
        assert (wanted < 0.995).all()
        assert_close(sums.of(layer, 4), wanted, 1e-6, f"row sums of layer {layer}")


@learned_sink_cells()
@pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS)
def test_logits_are_those_of_the_models_own_attention(policy, family, sizes):
    """Real weights and sinks: an eager forward with the same visible sets, and one without sinks is far from it."""
    model, reference = families.build(family), families.build(family, attention="eager")
    ids = families.tokens(40)
    with policy.cache(model, frame="original") as cache:
        got, masks = feed_and_see(policy, model, cache, ids, sizes, families.windows(model))
    wanted = dense.masked_layers(reference, ids[0], masks)
    assert_close(got[0], wanted, 1e-4)
    with torch.no_grad():
        for module in attention_modules(reference):
            module.sinks.fill_(-1e9)
    assert (dense.masked_layers(reference, ids[0], masks) - wanted).abs().max() > 0.1


@learned_sink_cells("position")
def test_in_the_frame_of_ranks(policy, family):
    """One layer at ranks: an ordinary forward on what each token sees, sinks and all."""
    model = families.build(family, layers=1)
    ids = families.tokens(40)
    with policy.cache(model, frame="slots") as cache:
        got = feed_in(model, cache, ids, 7)[0]
    for t in range(40):
        seen = ids[0, visible(t, BUDGET, pinned(policy.sinks))]
        assert_close(got[t], dense.plain(model, seen)[-1], 1e-4, f"token {t}")
