"""An arm of a comparison: one policy with one budget and one set of pins, and the products that make many of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sinkpin.budget import Budget
from sinkpin.errors import BudgetError, PolicyError
from sinkpin.policies import check_name, parse
from sinkpin.spans import Span


@dataclass(frozen=True)
class Arm:
    """What `compare` runs once. `budget` is None for `full` only; see `BoundedCache` for the rest."""

    policy: str
    budget: int | str | None = None
    sinks: int = 4
    frame: Literal["slots", "original"] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    pins: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.policy, str):
            raise PolicyError(
                f"an arm's policy is a name, not {self.policy!r}: results are filed under it; offer its class under the "
                "entry-point group 'sinkpin.policies' and give that name, or feed a BoundedCache with the object yourself"
            )
        check_name(self.policy)
        if self.policy == "full":
            if self.budget is not None:
                raise BudgetError(
                    f"budget {self.budget!r} for the arm 'full', which keeps everything: leave it out"
                )
        elif self.budget is None:
            raise BudgetError(
                f"the arm {self.policy!r} has no budget: give tokens (1024), a share (25%) or bytes (64MiB)"
            )
        else:
            Budget.parse(self.budget)
        if type(self.sinks) is not int or self.sinks < 0:
            raise PolicyError(
                f"sinks={self.sinks!r}: the number of pinned first tokens is a whole number, zero or more"
            )

    @property
    def name(self) -> str:
        """What results are filed under: `policy-budget+sinks`, as in `window-64+0`. Options stand behind the policy in
        brackets, further spans behind the sinks (`+5:9`), a frame that was asked for at the end (`/slots`)."""
        if self.policy == "full":
            return "full"
        options = ",".join(f"{key}={value}" for key, value in self.options.items())
        options = f"[{options}]" if options else ""
        spans = "".join(f"+{start}:{stop}" for start, stop in self.pins)
        frame = f"/{self.frame}" if self.frame else ""
        return f"{self.policy}{options}-{self.budget}+{self.sinks}{spans}{frame}"


def product(
    policies: Sequence[str],
    budgets: Sequence[int | str],
    sinks: Sequence[int],
    frame: Literal["slots", "original"] | None = None,
) -> list[Arm]:
    """The full reference, then policies x budgets x sinks. Policies are written `name` or `name:option=value,…`.

    `window` with a sink is StreamingLLM and is called so; `streaming` without one is left out of the product. Raises
    `PolicyError` and `BudgetError` for what cannot be read.
    """
    arms = [Arm("full", sinks=0)]
    for written in policies:
        name, options = parse(written)
        if name == "full":
            continue
        for budget in budgets:
            for count in sinks:
                if name == "streaming" and count == 0:
                    if len(sinks) == 1:
                        raise PolicyError(
                            "policy 'streaming' with 0 sinks: it pins at least one; 'window' has none"
                        )
                    continue
                called = "streaming" if name == "window" and count else name
                arm = Arm(called, budget=budget, sinks=count, frame=frame, options=options)
                if arm not in arms:
                    arms.append(arm)
    if len(arms) == 1 and not any(parse(written)[0] == "full" for written in policies):
        raise PolicyError(
            "no arm to compare with the full cache: give at least one policy, budget and number of sinks"
        )
    return arms


def with_pins(arms: Sequence[Arm], spans: Sequence[Span]) -> list[Arm]:
    """`arms`, and one more for each policy, options, frame and budget among them, which pins the merged `spans` only.

    It comes behind those it differs from by its pins. A span of first tokens is its `sinks`, so that an arm that is among
    `arms` already is not there twice.
    """
    sinks = spans[0][1] if spans and spans[0][0] == 0 else 0
    pins = tuple(spans[1:] if sinks else spans)
    last = {_unpinned(arm).name: arm for arm in arms if arm.policy != "full"}
    out: list[Arm] = []
    for arm in arms:
        out.append(arm)
        bare = _unpinned(arm)
        if last.get(bare.name) is arm:
            policy = "streaming" if bare.policy == "window" and sinks else bare.policy
            more = replace(bare, policy=policy, sinks=sinks, pins=pins)
            if more not in arms:
                out.append(more)
    return out


def _unpinned(arm: Arm) -> Arm:
    return replace(arm, policy="window" if arm.policy == "streaming" else arm.policy, sinks=0, pins=())
