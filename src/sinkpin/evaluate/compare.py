"""Policies against the full cache: the same tokens, the same positions, the same teacher forcing, at stated bytes.

Every arm is scored on the positions after the last arm's first eviction (and after the prompt), so that no arm is
credited with tokens before which it had lost nothing. What this does not do yet: intervals, KL, verdicts; those
fields are None.
"""

import platform
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

import sinkpin
from sinkpin import demo
from sinkpin.cache.bounded import BoundedCache
from sinkpin.cache.compat import causal_lm
from sinkpin.errors import BudgetError, InputError
from sinkpin.evaluate.arms import Arm
from sinkpin.evaluate.record import ArmResult, Comparison
from sinkpin.evaluate.scoring import EXACT_CHUNK, Scores, cache_for, first_touched, one_text, score
from sinkpin.policies import resolve

_SINKS = 4  # `sink_kept` asks after the first four tokens, however many an arm pins


def compare(
    model: Any,
    input_ids: Tensor,
    arms: Sequence[Arm],
    *,
    chunk: int = 16,
    prompt: int | None = None,
    name: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Comparison:
    """Score `arms` on `input_ids [tokens]` or `[1, tokens]`; the full reference is put first if it is not there.

    `chunk`: tokens a forward for scored policies, recorded. `prompt`: the first so many tokens are fed as one forward
    to scored policies, shares are taken of it, and scoring starts after it; without it, shares are of the text.
    `progress(arm, tokens done, tokens in all)` is called when an arm begins and after each forward.

    Raises `SinkpinError`, before anything is run, for ids that are not one text, a text too short to evict anything,
    budgets and pins that do not fit, and a text that outruns learned positions.
    """
    ids = one_text(input_ids, causal_lm(model).config.get_text_config().vocab_size)
    if type(chunk) is not int or chunk < 1:
        raise InputError(f"chunk={chunk!r}: a forward takes a whole number of tokens, at least one")
    if isinstance(arms, Arm | str) or not all(isinstance(arm, Arm) for arm in arms):
        raise InputError("arms are sinkpin.Arm objects: give a list of them")
    if prompt is not None and (type(prompt) is not int or not 1 <= prompt < len(ids)):
        raise InputError(
            f"prompt={prompt} of a text of {len(ids)} tokens: it must leave at least one token to score"
        )
    arms = [Arm("full", sinks=0), *(arm for arm in arms if arm.policy != "full")]
    if len(arms) == 1:
        raise InputError("nothing to compare with the full cache: give at least one other arm")
    _check_names(arms)
    base = prompt or len(ids)
    first = _first_scored(model, ids, arms, base, prompt, chunk)

    results: list[ArmResult] = []
    trained: int | None = None
    losses: dict[str, np.ndarray] = {}
    notes = _notes(model, arms, chunk, prompt, len(ids))
    remarks: dict[str, list[str]] = {}
    reference: Scores | None = None
    for arm in arms:
        if progress is not None:
            progress(arm.name, 0, len(ids) - 1)
        with cache_for(model, arm, base) as cache:
            exact = cache.policy.kind == "position"
            scores = score(
                model,
                ids,
                cache,
                first=first,
                chunk=EXACT_CHUNK if exact else chunk,
                prompt=None if exact else prompt,
                progress=partial(progress, arm.name) if progress is not None else None,
            )
            reference = reference or scores
            trained = cache.door.anatomy.trained
            losses[arm.name] = scores.losses
            results.append(
                _result(arm, cache, scores, reference, len(ids) - 1, EXACT_CHUNK if exact else chunk)
            )
            for note in cache.notes:
                remarks.setdefault(note, []).append(arm.name)
    return Comparison(
        model=name or _name_of(model),
        versions={
            "sinkpin": sinkpin.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        tokens=len(ids),
        scored_tokens=len(ids) - first,
        chunk=chunk,
        trained_length=trained,
        notes=notes + [f"{', '.join(names)}: {note}" for note, names in remarks.items()],
        arms=results,
        positions=np.arange(first, len(ids), dtype=np.int64),
        losses=losses,
    )


def _name_of(model: Any) -> str:
    """The demo model's own name, else the folder or hub name that the model was loaded from."""
    inner = causal_lm(model)
    place = str(getattr(inner.config, "_name_or_path", ""))
    if not place:
        return type(inner).__name__
    return demo.NAME if demo.is_model_folder(place) else place


def _check_names(arms: Sequence[Arm]) -> None:
    names = [arm.name for arm in arms]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(
            f"arm {sorted(twice)[0]} is given twice: results are filed under its name; give it once"
        )


def _first_scored(
    model: Any, ids: Tensor, arms: Sequence[Arm], base: int, prompt: int | None, chunk: int
) -> int:
    """Index of the first scored token: predicted after every arm has evicted something, and after the prompt."""
    tokens, first = len(ids), prompt or 1
    for arm in arms:
        with cache_for(model, arm, base) as cache:
            anatomy, budget, policy = cache.door.anatomy, cache.budget_tokens, cache.policy
        if anatomy.learned and anatomy.trained is not None and tokens - 1 > anatomy.trained:
            raise InputError(
                f"the text has {tokens} tokens, the model {anatomy.trained} learned positions: it would outrun them; "
                f"compare on at most {anatomy.trained} tokens"
            )
        if policy.kind == "prompt" and prompt is None:
            raise InputError(
                f"{arm.name} chooses once, when the prompt ends, and this text has no prompt: say how many of its "
                "first tokens are one, prompt=N"
            )
        if budget is None:
            continue
        touched = first_touched(tokens, budget, None if policy.kind == "position" else chunk, prompt)
        if touched is None or (policy.kind == "prompt" and prompt is not None and prompt <= budget):
            held = f"holds {budget} entries" + (
                "" if policy.kind == "position" else f", fed {chunk} at a time"
            )
            raise BudgetError(
                f"{arm.name} {held}, and evicts nothing of a text of {tokens} tokens that could be scored"
                f"{f' after a prompt of {prompt}' if prompt else ''}: give more text, or a smaller budget"
            )
        first = max(first, touched)
    return first


def _chooses(arm: Arm) -> bool:
    """Whether the arm's policy chooses after forwards, so that the chunk is part of its result."""
    return resolve(arm.policy, arm.options).kind != "position"


def _notes(model: Any, arms: Sequence[Arm], chunk: int, prompt: int | None, tokens: int) -> list[str]:
    inner = causal_lm(model)
    dtype = str(inner.dtype).removeprefix("torch.")
    threads = torch.get_num_threads()
    notes = [f"computed in {dtype} on {inner.device.type} with {threads} thread{'s' * (threads != 1)}"]
    if any(str(arm.budget).endswith("%") for arm in arms):
        notes.append(f"shares are of {'the prompt' if prompt else 'the text'}: {prompt or tokens} tokens")
    if any(_chooses(arm) for arm in arms):
        fed = f"the first {prompt} tokens at once, then " if prompt else ""
        notes.append(
            f"policies that choose after a forward were fed {fed}{chunk} token{'s' * (chunk != 1)} at a time, which see "
            "each other on top of the budget"
        )
    return notes


def _result(
    arm: Arm, cache: BoundedCache, scores: Scores, reference: Scores, fed: int, chunk: int
) -> ArmResult:
    origins = [cache.origins(layer)[0] for layer in cache.bounded_layers]  # each [kv_heads, kept]
    heads = sum(len(o) for o in origins)
    sinks_held = sum(int(((o >= 0) & (o < _SINKS)).sum()) for o in origins)
    kept = sum(int((o >= 0).sum()) for o in origins)
    nll = float(scores.losses.astype(np.float64).mean())
    tokens = cache.budget_tokens
    return ArmResult(
        name=arm.name,
        policy=arm.policy,
        options=dict(arm.options),
        sinks=arm.sinks,
        pins=[list(span) for span in arm.pins],
        budget=None if arm.budget is None else str(arm.budget),
        chunk=chunk,
        frame=cache.frame if cache.policy.bounded else None,
        budget_tokens=tokens,
        budget_bytes=None if tokens is None else cache.footprint.bytes_of(tokens),
        kv_bytes_peak=cache.peak_nbytes,
        kv_bytes_steady=cache.nbytes(),
        evicted=(fed * heads - kept) / heads,
        sink_kept=sinks_held / (_SINKS * heads),
        nll=nll,
        ppl=float(np.exp(nll)),
        delta_nll=nll - float(reference.losses.astype(np.float64).mean()),
        ci95=None,
        kl=None,
        top1_agreement=float((scores.top == reference.top).mean()),
        verdict=None,
        tokens_per_s=fed / scores.seconds,
    )
