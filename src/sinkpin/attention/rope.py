"""Rotary position embedding from the unrotated value: ranks or indices in, rotated vectors out.

Cached keys are stored unrotated and rotated here afresh each time, once, from their stored value: a bf16 key that
is rotated in place step after step is 52 % wrong after 1,000 steps. Source: Su et al., arXiv 2104.09864.

The factor some variants multiply onto cos and sin (`attention_scaling` of yarn and longrope) is *not* applied here:
a model that rotates by position 0 has applied it already. Choosing the frequencies is the caller's business.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rotary:
    """The rotation of one layer: its inverse frequencies `[rotary_dim / 2]` and how pairs are laid out.

    `interleaved=False` pairs dimension i with i + rotary_dim/2 (Llama, GPT-NeoX), `True` pairs 2i with 2i + 1
    (GPT-J, Cohere). Dimensions from `rotary_dim` on pass unrotated (partial rotary).
    """

    inv_freq: Tensor
    interleaved: bool = False

    @property
    def rotary_dim(self) -> int:
        return 2 * self.inv_freq.shape[0]

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, fp32 `[*positions.shape, rotary_dim / 2]`. Positions may be negative: only differences count.

        Angles are formed in fp64 where the device has it: at position 4 million an fp32 angle is wrong by 0.2 radians.
        """
        exact = torch.float32 if positions.device.type == "mps" else torch.float64
        angles = positions.to(exact)[..., None] * self.inv_freq.to(positions.device, exact)
        return angles.cos().float(), angles.sin().float()

    def up_to(self, positions: int, device: torch.device) -> Tensor:
        """cos and, behind them, sin of the first `positions` positions, fp32 `[positions, rotary_dim]`. The last table
        asked for is remembered: decoding asks for the same at every step."""
        remembered: Tensor | None = self.__dict__.get("_up_to")
        if remembered is None or len(remembered) != positions or remembered.device != device:
            remembered = torch.cat(self.tables(torch.arange(positions, device=device)), dim=-1)
            object.__setattr__(self, "_up_to", remembered)
        return remembered

    def rotate(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate `x [..., head_dim]` by tables that broadcast against `[..., rotary_dim / 2]`; returns fp32."""
        cos, sin = tables
        x = x.float()
        turned, passed = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        if self.interleaved:
            first, second = slice(0, None, 2), slice(1, None, 2)
            twice = cos.repeat_interleave(2, dim=-1)
        else:
            first, second = slice(None, self.rotary_dim // 2), slice(self.rotary_dim // 2, None)
            twice = torch.cat((cos, cos), dim=-1)
        # Three passes over x instead of seven: in the frame of ranks every key is rotated at every step.
        out = turned * twice
        out[..., first].addcmul_(turned[..., second], sin, value=-1)
        out[..., second].addcmul_(turned[..., first], sin)
        return out if passed.shape[-1] == 0 else torch.cat((out, passed), dim=-1)
