"""C7: keys and values are stored per KV head, and a choice is each KV head's own, the same with padding as without."""

import torch

import families
from contract.cells import BOUNDED, every_policy, feed, feed_in, heads, tensors


@every_policy()
def test_kv_heads_are_stored_as_kv_heads(policy):
    """Case 11: 8 query and 2 KV heads: two are stored.

    Kills: `repeat_kv` before the update.
    """
    model = families.from_config(
        families.FAMILIES["llama"].config(
            layers=2,
            kv_heads=2,
            head_dim=8,
            positions=128,
            rope_kind="default",
            initializer_range=0.3,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=None,
        )
    )
    with policy.cache(model) as cache:
        feed_in(model, cache, families.tokens(30), 10)
        for layer in range(2):
            assert cache.origins(layer).shape[:2] == (1, 2)
            entries = int((cache.origins(layer) >= 0).sum())
            for stored in (cache.layers[layer].keys, cache.layers[layer].values):
                assert stored.untyped_storage().nbytes() == entries * 8 * 4
        if policy.name not in (
            "expected",
            "adakv",
        ):  # moments of each query head; heads laid out one after another
            assert {t.shape[1] for t in tensors(cache) if t.is_floating_point() and t.dim() == 4} == {2}


@every_policy("scored", "prompt")
def test_padding_neither_gives_nor_receives(policy):
    """Case 9: a row's choice in a padded batch is its choice alone, through prefill and decode.

    Kills: scores over the padded columns; a hash or a sum indexed by the padded position.
    """
    model = families.build()
    short = families.tokens(20, seed=1)
    ids, mask = families.pad_left([families.tokens(33)[0], short[0]])
    steps = families.tokens(15, rows=2, seed=3)
    with policy.cache(model) as batch, policy.cache(model) as alone:
        feed(model, batch, ids, mask)
        feed(model, alone, short)
        for t in range(15):
            mask = torch.cat([mask, torch.ones(2, 1).long()], 1)
            feed(model, batch, steps[:, t : t + 1], mask)
            feed(model, alone, steps[1:, t : t + 1])
            for layer in range(2):
                assert heads(batch, layer, 1) == heads(alone, layer)


@every_policy(*BOUNDED)
def test_what_padding_holds_does_not_matter(policy):
    """Huge values in the padding's embeddings change no real logit.

    Kills: padding masked by a finite number, or only in the first layer.
    """
    model = families.build()
    ids, mask = families.pad_left([families.tokens(30)[0], families.tokens(9, seed=1)[0]])
    embeds = model.get_input_embeddings()(ids).detach()
    outputs = []
    for noise in (0.0, 1e4):
        spoiled = embeds + noise * (1 - mask)[..., None] * torch.randn(embeds.shape)
        with policy.cache(model) as cache:
            logits = feed(model, cache, None, mask, inputs_embeds=spoiled)
            outputs.append(logits[mask.bool()])
    assert torch.equal(*outputs) or (outputs[0] - outputs[1]).abs().max() < 1e-5
