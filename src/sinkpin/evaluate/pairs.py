"""Arms that differ by their pins only: what the pins are worth is read from those, apart from what the policy is worth.

A pair has one policy with the same options, one frame and one budget as it was written; one arm of it pins nothing, the
other the first four tokens, or the most that were asked for where four were not.
"""

from collections.abc import Sequence

from sinkpin.evaluate.record import ArmResult

USUAL = 4  # pinned first tokens: StreamingLLM's


def pairs(arms: Sequence[ArmResult]) -> list[tuple[ArmResult, ArmResult]]:
    """`(without, with pins)`, in the order of the arms, one pair for each setting that ran both ways."""
    found = []
    for without in arms:
        if without.policy == "full" or without.pinned:
            continue
        same = [arm for arm in arms if arm.pinned and arm.setting == without.setting]
        if same:
            found.append((without, max(same, key=usual)))
    return found


def unpinned_twin(arm: ArmResult, arms: Sequence[ArmResult]) -> ArmResult | None:
    """The arm that differs from the pinned `arm` by having no pins, if there is one."""
    twins = (other for other in arms if other.setting == arm.setting and not other.pinned)
    return next(twins, None) if arm.pinned and arm.policy != "full" else None


def usual(arm: ArmResult) -> tuple[bool, int]:
    """A key: the largest is the number of pins to show where one has to stand for all."""
    return arm.sinks == USUAL and not arm.pins, arm.pinned_tokens
