"""C5: `seen` slices inputs and is reported; ranks place keys and build masks. Never one for the other."""

import torch

import families
from contract.cells import BOUNDED, CACHE, assert_close, every_policy, feed, feed_in, origins
from naive import dense
from naive.streaming import pinned, visible


@every_policy(*BOUNDED)
def test_both_numbers(policy):
    """Case 2: 100 tokens, budget 16: seen is 100, kept is 16, and the next logits are right in both frames.

    Kills: `get_seq_length` returning kept (generate then feeds old tokens again); a query placed at seen.
    """
    model = families.build(layers=1, kv_heads=1)
    ids = families.tokens(101)
    for frame in ("slots", "original"):
        with policy.cache(model, budget=16, frame=frame) as cache:
            feed_in(model, cache, ids[:, :100], 10)
            assert cache.seen == cache.get_seq_length() == 100
            assert cache.kept() == 16
            held = origins(cache)
            seen = visible(100, 16, pinned(policy.sinks))[:-1] if policy.kind == "position" else held
            got = feed(model, cache, ids[:, 100:])
            assert_close(got[0], dense.one_layer(model, ids[0], seen, [100], frame=frame), 1e-4, frame)


@every_policy(*BOUNDED)
def test_generate_feeds_only_what_is_new(policy):
    """`generate` on a cache that has seen 30 tokens and kept 12 feeds the 5 new ones, once.

    Kills: slicing by kept, which feeds 23 tokens; the first forward's length is what tells.
    """
    model = families.build()
    ids = families.tokens(35)
    fed: list[int] = []
    with policy.cache(model) as cache:
        feed_in(model, cache, ids[:, :30], 10)
        handle = model.get_input_embeddings().register_forward_hook(
            lambda _m, args, _o: fed.append(args[0].shape[1])
        )
        out = model.generate(ids, **{CACHE: cache}, max_new_tokens=4, min_new_tokens=4, do_sample=False)
        handle.remove()
        assert fed == [5, 1, 1, 1]
        assert out.shape[1] == 39
        assert cache.seen == 38
        assert torch.equal(out[:, :35], ids)


@every_policy(*BOUNDED)
def test_padding_is_not_seen_by_the_row(policy):
    """Origins count a row's real tokens; `seen` counts what was fed, padding included, since generate slices by it.

    Kills: origins that start at the padded index.
    """
    model = families.build()
    ids, mask = families.pad_left([families.tokens(20)[0], families.tokens(7, seed=1)[0]])
    with policy.cache(model) as cache:
        feed(model, cache, ids, mask)
        assert cache.seen == 20
        assert 12 <= cache.origins()[0, 0].max() <= 19
        if policy.newest:
            assert origins(cache)[-1] == 19
        assert origins(cache, row=1) == list(range(7))
