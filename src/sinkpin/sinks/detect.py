"""`detect`: measure a prompt, decide which tokens are sinks, name their kind, and say what losing them costs.

The parts are one file each: `measure`, `attention.outliers`, `experiments`, `template`, `ablate`, `sinkpin.card`. Not
covered: where prompts come from, and where the report goes (`cli.detect`).
"""

import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import Tensor

import sinkpin
from sinkpin import card
from sinkpin.attention.outliers import EPSILON, RATE, Outliers, outliers
from sinkpin.cache.compat import causal_lm
from sinkpin.card import Card
from sinkpin.errors import InputError
from sinkpin.sinks import experiments as changed
from sinkpin.sinks.ablate import BLOCK, Window, ablate, effect, restored, windows
from sinkpin.sinks.experiments import bound_to_the_first_place, kind_of
from sinkpin.sinks.identity import model_hash, template_hash, tokenizer_hash
from sinkpin.sinks.measure import LEFT_OUT, Measurement, measure
from sinkpin.sinks.report import Ablation, Experiment, Report, Restored, Sink
from sinkpin.sinks.template import Prompt
from sinkpin.statistics import stability

Said = Callable[[str], None]

SHORT = 256
"""Tokens of the prompts that stability is asked of, and of those that losing first tokens is tried on."""
PROMPTS = 8
BUDGET = 256
COUNTS = (0, 1, 2, 4, 8)
ENOUGH = 0.01
"""Nats per token: so many first tokens are needed that pinning eight would gain less than this, with 95 % confidence."""
_FEWEST = 3
_MARKERS = 64  # template markers that are listed, at most


def detect(
    model: Any,
    input_ids: Any,
    *,
    tokenizer: Any = None,
    chat: Prompt | None = None,
    text: Sequence[int] | None = None,
    ablation: bool = False,
    count: bool = False,
    epsilon: float = EPSILON,
    rate: float = RATE,
    left_out: int = LEFT_OUT,
    name: str | None = None,
    prompt: str = "ids",
    said: Said = lambda line: None,
) -> Report:
    """Find the sinks of one prompt, `input_ids [T]` or `[1, T]`.

    `tokenizer`: to show tokens, to draw ordinary ones, and for its BOS. `chat`: the prompt as `template.render` made it, whose
    markers are candidates. `text`: further ids, which stability over prompts is asked of; without them, the prompt itself.
    `ablation`: also what losing each sink costs, and (`count`: only that) how many first tokens are enough, on the text.
    `epsilon`, `rate`, `left_out`: see `attention.outliers` and `measure`. `prompt`: what to call it. `said` hears what is
    being done.

    Raises `InputError` for ids that are not one prompt, or too short a text, `ModelError` for a model that cannot be followed.
    """
    inner = causal_lm(model)
    size = inner.config.get_text_config().vocab_size
    ids = _ids(input_ids, size, "input_ids")
    further = ids if text is None or not len(text) else _ids(text, size, "text")
    _check(epsilon, rate, left_out)
    if ablation or count:
        _check_length(ids, further)
    said(f"measuring {len(ids):,} tokens")
    seen = measure(model, ids, left_out=left_out)
    found = outliers(seen.mass, epsilon=epsilon, rate=rate)
    vocabulary = _ordinary(tokenizer, size)
    bos = getattr(tokenizer, "bos_token_id", None)
    tried = changed.run(model, ids, vocabulary=vocabulary, bos=bos, left_out=left_out, said=said)
    sinks = _sinks(ids, seen, found, tried, chat, tokenizer)
    notes = list(seen.notes)
    steady, how = _stability(model, further, epsilon=epsilon, rate=rate, left_out=left_out, said=said)
    notes += how
    lost: list[Ablation] = []
    given: list[Restored] = []
    needed: int | None = None
    if ablation:
        lost = _ablations(model, ids, further, sinks, seen, said)
    if ablation or count:
        given, needed = _restored(model, ids, further, sinks, said)
    report = Report(
        model=name or str(inner.config._name_or_path or type(inner).__name__),
        versions={
            "sinkpin": sinkpin.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        prompt=prompt,
        settings={
            "tokens": len(ids),
            "epsilon": epsilon,
            "rate": rate,
            "left_out": left_out,
            "z_scaled_by": found.how,
            "dtype": str(inner.dtype).removeprefix("torch."),
        },
        layers=seen.layers,
        heads=seen.mass.shape[1],
        kv_heads=_kv_heads(inner),
        ids=ids.numpy(),
        texts=_texts(tokenizer, ids),
        mass=found.mean.astype(np.float32),
        most=found.most.astype(np.float32),
        heads_over=found.heads,
        z=found.z.astype(np.float32),
        cut=found.cut if np.isfinite(found.cut) else None,
        sink_heat=seen.mass[:, :, list(found.found)].sum(-1),
        curve=_curve(seen.mass),
        learned=seen.learned,
        entropy=seen.entropy,
        margin=seen.margin,
        varentropy=seen.varentropy,
        sinks=sinks,
        experiments=tried,
        ablations=tuple(lost),
        restored=tuple(given),
        notes=tuple(notes),
    )
    return replace(report, card=card_of(report, inner, tokenizer, chat, steady, needed).to_json())


def _ids(given: Any, vocabulary: int, what: str) -> Tensor:
    """`given`, called `what`, as int64 `[tokens]` on the CPU."""
    try:
        ids = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{what} cannot be read as ids ({error}): give those of one prompt, [tokens]"
        ) from None
    ids = ids[0] if ids.ndim == 2 and ids.shape[0] == 1 else ids
    if ids.ndim != 1 or ids.is_floating_point() or ids.dtype == torch.bool or not len(ids):
        raise InputError(f"{what} {list(ids.shape)} {ids.dtype}: give the ids of one prompt, [tokens]")
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        raise InputError(
            f"{what} reach from {int(ids.min())} to {int(ids.max())}, the model has {vocabulary} tokens: they come from another "
            "tokenizer"
        )
    return ids.long().cpu()


def _check_length(ids: Tensor, further: Tensor) -> None:
    """Before minutes of measuring: whether there is enough to score afterwards."""
    there = len(further) + (0 if further is ids else len(ids))
    if there < (needed := BUDGET + 2 * BLOCK + 1):
        raise InputError(
            f"what losing sinks costs is asked of {there} tokens, and {needed} are the least: {BUDGET} in a window, and two "
            f"blocks of {BLOCK} to score; give a longer text"
        )


def _check(epsilon: object, rate: object, left_out: object) -> None:
    for name, value in (("epsilon", epsilon), ("rate", rate)):
        if not isinstance(value, int | float) or not 0 < value < 1:
            raise InputError(f"{name}={value!r}: a share between 0 and 1")
    if type(left_out) is not int or left_out < 0:
        raise InputError(
            f"left_out={left_out!r}: how many of the last tokens are left out, a whole number from 0 up"
        )


def _ordinary(tokenizer: Any, vocabulary: int) -> list[int]:
    """Tokens that a text is made of: none of the special ones."""
    special = set(getattr(tokenizer, "all_special_ids", ())) | set(
        getattr(tokenizer, "added_tokens_decoder", ())
    )
    known = vocabulary if tokenizer is None else min(vocabulary, len(tokenizer))
    return [token for token in range(known) if token not in special]


def _texts(tokenizer: Any, ids: Tensor) -> list[str]:
    if tokenizer is None:
        return [f"[{token}]" for token in ids.tolist()]
    return [tokenizer.decode([token]) for token in ids.tolist()]


def _kv_heads(model: Any) -> int:
    config = model.config.get_text_config()
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def _sinks(
    ids: Tensor,
    seen: Measurement,
    found: Outliers,
    tried: tuple[Experiment, ...],
    chat: Prompt | None,
    tokenizer: Any,
) -> tuple[Sink, ...]:
    """The tokens found by their mass, and the template's own markers, which are candidates whatever their mass."""
    markers = set() if chat is None else {i for start, stop in chat.markers for i in range(start, stop)}
    bound = bound_to_the_first_place(tried)
    leading = 0
    while leading in found.sinks:
        leading += 1
    listed = sorted({*found.found, *sorted(i for i in markers if not np.isnan(found.mean[i]))[:_MARKERS]})
    written = np.nan_to_num(seen.mass) * seen.written
    total = written.sum()
    texts = _texts(tokenizer, ids)

    def over(norms: npt.NDArray[np.floating], index: int) -> float:
        return float(np.mean(norms[:, index] / np.median(norms, axis=-1)))

    return tuple(
        Sink(
            index=index,
            token=int(ids[index]),
            text=texts[index],
            kind=kind_of(index, is_marker=index in markers, leads=index < leading, bound=bound),
            outlier=index in found.found,
            mass=float(found.mean[index]),
            most=float(found.most[index]),
            heads=int(found.heads[index]),
            z=float(found.z[index]),
            q=float(found.q[index]),
            layers=tuple(np.array(seen.layers)[found.z_of_layers[:, index] >= found.cut].tolist()),
            norms={
                "hidden": over(seen.hidden_norms, index),
                "key": over(seen.key_norms, index),
                "value": over(seen.value_norms, index),
            },
            payload=float(written[:, :, index].sum() / total) if total else 0.0,
        )
        for index in listed
    )


def _curve(mass: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Gu et al.'s rate over ε: the share of heads that pay some token more than ε."""
    largest = np.nanmax(mass, axis=-1).ravel()
    points = np.linspace(0, 1, 101)
    return np.stack([points, [(largest > point).mean() for point in points]], axis=-1).astype(np.float32)


def _stability(
    model: Any, text: Tensor, *, epsilon: float, rate: float, left_out: int, said: Said
) -> tuple[dict[str, Any] | None, list[str]]:
    """How alike the places of sinks are in several prompts: stretches of the text, one after the other."""
    short = max(SHORT, 4 * left_out)
    prompts = [text[at : at + short] for at in range(0, len(text) - short + 1, short)][:PROMPTS]
    if len(prompts) < _FEWEST:
        return None, [
            f"stability over prompts was not measured: {len(text)} tokens of text make {len(prompts)} prompts of {short}, and an "
            f"interval needs {_FEWEST}"
        ]
    sets = []
    for number, ids in enumerate(prompts):
        said(f"stability, prompt {number + 1} of {len(prompts)}")
        mass = measure(model, ids, left_out=left_out).mass
        sets.append(set(outliers(mass, epsilon=epsilon, rate=rate).sinks))
    jaccard, interval = stability(sets)
    return {"jaccard": jaccard, "ci95": list(interval), "prompts": len(sets)}, []


def _leading(sinks: Sequence[Sink]) -> tuple[int, ...]:
    return tuple(sink.index for sink in sinks if sink.kind == "true")


def _ablations(
    model: Any, ids: Tensor, further: Tensor, sinks: Sequence[Sink], seen: Measurement, said: Said
) -> list[Ablation]:
    """The first tokens over many short prompts of the text; sinks of this prompt in this prompt alone."""
    found: list[Ablation] = []
    others = [sink.index for sink in sinks if sink.outlier]

    def norms_of(window: Window) -> npt.NDArray[np.floating]:
        return measure(model, window.ids[: window.prompt], left_out=0).key_norms.mean(0)

    if first := _leading(sinks):
        many = windows(further, prompt=SHORT, most=PROMPTS)
        found += ablate(model, many, first, _named(first), key_norms=norms_of, said=said)
    prompt = min(len(ids), len(ids) if further is not ids else len(ids) // 2)
    continuation = further[: 4 * BLOCK + 1] if further is not ids else ids[prompt:]
    whole = [Window(torch.cat((ids[:prompt], continuation)), prompt)]
    for kind, what in (("structural", "the template's markers"), ("secondary", "secondary sinks")):
        indices = [sink.index for sink in sinks if sink.kind == kind and sink.index < prompt]
        if indices:
            found += ablate(
                model,
                whole,
                indices,
                what if len(indices) > 1 else _named(indices),
                key_norms=lambda window: seen.key_norms.mean(0)[: window.prompt],
                others=others,
                said=said,
            )
    return found


def _named(indices: Sequence[int]) -> str:
    return f"token {indices[0]}" if len(indices) == 1 else f"tokens {indices[0]} to {indices[-1]}"


def _restored(
    model: Any, ids: Tensor, further: Tensor, sinks: Sequence[Sink], said: Said
) -> tuple[list[Restored], int | None]:
    """What pinning gives back in a sliding window, and how many first tokens are enough."""
    text = (ids if further is ids else torch.cat((ids, further)))[: BUDGET + PROMPTS * BLOCK + 1]
    said(f"a window of {BUDGET} entries over {len(text):,} tokens, with 0 to {max(COUNTS)} tokens pinned")
    pinned = {f"first {count}": [(0, count)] if count else [] for count in COUNTS}
    found = [(sink.index, sink.index + 1) for sink in sinks if sink.outlier]
    if len(_leading(sinks)) < len(found) < BUDGET // 2:
        pinned["all that was found"] = found
    runs = restored(model, text, BUDGET, pinned)
    without, most = runs["first 0"], runs[f"first {max(COUNTS)}"]
    needed = max(COUNTS)
    for count in COUNTS:
        behind = runs[f"first {count}"].copy()
        behind[:, 0] -= most[:, 0]
        if effect(behind).ci95[1] < ENOUGH:
            needed = count
            break
    scored = len(without) * BLOCK
    return [
        Restored(what=what, budget=BUDGET, without=effect(without), pinned=effect(run), scored=scored)
        for what, run in runs.items()
        if run is not without
    ], needed


def card_of(
    report: Report,
    model: Any,
    tokenizer: Any,
    chat: Prompt | None,
    steady: dict[str, Any] | None,
    needed: int | None,
) -> Card:
    """The card that other tools read: rules for every prompt. Secondary sinks stand elsewhere in each, so they get none."""
    leading = len(_leading(report.sinks))
    count = leading if needed is None else needed
    rules = [card.first(count)] if count else []
    if chat is not None and chat.opening:
        rules.append(card.opening(chat.ids[: chat.opening]))
    return Card(
        model=report.model,
        model_hash=model_hash(model),
        tokenizer_hash=None if tokenizer is None else tokenizer_hash(tokenizer),
        template_hash=None if tokenizer is None else template_hash(tokenizer),
        settings={**report.settings, "prompt": report.prompt},
        rules=tuple(rules),
        needed=needed,
        stability=steady,
        sinks=tuple(
            {"index": s.index, "text": s.text, "kind": s.kind, "mass": round(s.mass, 6)}
            for s in report.sinks
            if s.outlier
        ),
        versions=report.versions,
    )
