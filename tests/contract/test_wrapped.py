"""The models of a day-one user: wrapped by PEFT, placed by accelerate, offloaded, in half precision, quantised to int8."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from contract.cells import CACHE, assert_close, dynamic, feed, origins
from families import build, tokens
from sinkpin import BoundedCache


def with_lora(_: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(build(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"])).eval()


def placed(folder: Any) -> Any:
    from transformers import AutoModelForCausalLM

    build().save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, device_map={"": "cpu"}).eval()


def offloaded(_: Any) -> Any:
    from accelerate import cpu_offload

    return cpu_offload(build(), execution_device=torch.device("cpu"))


def in_int8(_: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.ao.quantization.quantize_dynamic(build(), {torch.nn.Linear}, dtype=torch.qint8)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT's own use of names that transformers renames
@pytest.mark.parametrize("policy", ["streaming", "h2o", "snapkv"])
@pytest.mark.parametrize("wrap", [with_lora, placed, offloaded, in_int8], ids=lambda w: w.__name__)
def test_wrapped_models_work(wrap: Callable[[Any], Any], policy: str, tmp_path: Any) -> None:
    """Below the budget as `DynamicCache`; above it bounded, with its sinks, in `generate` too.

    Kills: a decoder looked for where the wrapper is; ids sent to a device that offloaded weights are not on.
    """
    model, ids = wrap(tmp_path), tokens(40)
    with BoundedCache(model, 64, policy=policy) as cache:
        assert_close(feed(model, cache, ids), feed(model, dynamic(model), ids), 1e-4)
    with BoundedCache(model, 14, policy=policy) as cache:
        out = model.generate(
            input_ids=ids, **{CACHE: cache}, do_sample=False, max_new_tokens=8, min_new_tokens=8
        )
        assert out.shape == (1, 48)
        assert cache.kept() == 14
        assert origins(cache)[:4] == [0, 1, 2, 3]
