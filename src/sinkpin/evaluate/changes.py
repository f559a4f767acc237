"""One run against an earlier one: what each arm's loss, verdict, divergence and bytes were, and are.

An arm has *moved* where its verdict is another, or the two 95 % intervals of its loss do not overlap. Intervals that do
overlap may still hide a small change: the runs were made apart, so there is no pairing to see it by. Where neither run
has a verdict or an interval, nothing is said to have moved or stayed. Not here: how it is shown (`page.tables`).
"""

from collections.abc import Mapping
from typing import Any

from sinkpin.evaluate.documents import Document

FOLLOWED = ("delta_nll", "ci95", "verdict", "kl", "kv_bytes_steady")


def changes(earlier: Document, later: Document) -> dict[str, Any]:
    """Plain data: `differs` (what else is different, in words), `arms` of both runs, those `gone` and those `new`."""
    before = {arm["name"]: arm for arm in earlier["arms"]}
    after = {arm["name"]: arm for arm in later["arms"]}
    arms = [
        {"name": name}
        | {key: [before[name].get(key), after[name].get(key)] for key in FOLLOWED}
        | {"moved": _moved(before[name], after[name])}
        for name in after
        if name in before and after[name]["policy"] != "full"
    ]
    return {
        "differs": _differs(earlier, later),
        "full_nll": [earlier["arms"][0]["nll"], later["arms"][0]["nll"]],
        "arms": arms,
        "gone": [name for name in before if name not in after],
        "new": [name for name in after if name not in before],
    }


def _moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool | None:
    """None where there is nothing to decide it by."""
    verdicts = before.get("verdict"), after.get("verdict")
    if None not in verdicts and verdicts[0] != verdicts[1]:
        return True
    old, new = before.get("ci95"), after.get("ci95")
    if old is None or new is None:
        return None if None in verdicts else False
    return bool(old[1] < new[0] or new[1] < old[0])


def _differs(earlier: Document, later: Document) -> list[str]:
    """What is different beside the numbers."""
    said = []
    for key in ("model", "text", "tokens", "scored_tokens", "chunk", "margin", "command"):
        old, new = earlier.get(key), later.get(key)
        if old != new and (key != "command" or None not in (old, new)):
            said.append(f"{key.replace('_', ' ')}: {old} → {new}")
    packages = dict.fromkeys([*earlier["versions"], *later["versions"]])
    for package in packages:
        old, new = earlier["versions"].get(package), later["versions"].get(package)
        if old != new:
            said.append(f"{package}: {old or 'not stated'} → {new or 'not stated'}")
    return said
