"""The table of policies, and each policy's choice alone (the contract suite sees them inside a cache)."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest
import torch

from sinkpin import policies
from sinkpin.cache.choice import dropped
from sinkpin.cache.ledger import Rule
from sinkpin.errors import PolicyError
from sinkpin.policies import names, parse, resolve, spelled
from sinkpin.policies.adakv import AdaKV
from sinkpin.policies.base import Policy, QueryStatistics, Ranked, View, highest, newest
from sinkpin.policies.random import hashes


@pytest.mark.parametrize("name", names())
def test_every_name_resolves_to_a_frozen_value(name: str) -> None:
    policy = resolve(name)
    assert policy.name == name
    assert policy == resolve(name)
    assert isinstance(hash(policy), int)
    with pytest.raises((FrozenInstanceError, AttributeError)):
        policy.seed = 3  # type: ignore[attr-defined]


def everything(heads: int, window: int) -> View:
    """Nine candidates of two rows, with all the evidence there is."""
    torch.manual_seed(0)
    keys, values = torch.randn(2, heads, 9, 4), torch.randn(2, heads, 9, 4)
    return View(
        layer=1,
        origins=torch.arange(3, 12).expand(2, heads, -1),
        seen=12,
        mass=torch.rand(2, heads, 9),
        recent=torch.randn(2, heads, window, 9).softmax(-1),
        keys=keys,
        rotated_keys=keys.flip(-1),
        values=values,
        queries=QueryStatistics(
            mean=torch.randn(2, 2 * heads, 4),
            covariance=torch.eye(4).expand(2, 2 * heads, -1, -1),
            rotate=lambda x, positions: x,
            positions=torch.full((2, 2 * heads), 11),
            scaling=0.5,
        ),
    )


@pytest.mark.parametrize("name", [n for n in names() if n != "full"])
@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_keeps_distinct_candidates(name: str, n: int) -> None:
    policy = resolve(name)
    heads = 3 if policy.per_head or not policy.needs else 1
    if getattr(policy, "across_heads", False):  # keep() is for one head; several share()
        heads = 1
    kept = policy.keep(everything(heads, max(1, policy.window(n))), n)
    assert kept.shape == (2, heads, n)
    assert kept.dtype == torch.int64
    assert all(len(set(head.tolist())) == n for row in kept for head in row)
    assert kept.min() >= 0
    assert kept.max() <= 8
    if name not in {"tova", "keydiff", "expected"}:  # they say in their docstrings that the newest may go
        assert (kept == 8).any(-1).all(), "the newest entry stays"


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("windwo", "did you mean 'window'"),
        ("H2O", "did you mean 'h2o'"),
        ("Streaming", "did you mean 'streaming'"),
        ("h2o2x", "there are"),
        ("random:seed", "not option=value"),
        ("random:", "not option=value"),
        ("random:sed=3", "it has seed"),
        ("window:seed=3", "it has none"),
        ("random:seed=x", "not of type int"),
    ],
)
def test_what_cannot_be_read(written: str, says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        resolve(written)


def test_options_come_from_both_sides_but_once() -> None:
    assert resolve("random:seed=3") == resolve("random", {"seed": 3})
    assert parse("random:seed=3") == ("random", {"seed": "3"})
    with pytest.raises(PolicyError, match="twice"):
        resolve("random:seed=3", {"seed": 3})
    with pytest.raises(PolicyError, match="on the object"):
        resolve(resolve("random"), {"seed": 3})
    with pytest.raises(PolicyError, match="keep"):
        resolve(object())  # type: ignore[arg-type]


class Nameless(Policy):
    def keep(self, view: View, n: int) -> torch.Tensor:
        return newest(view, n)


class Ignored(Nameless):
    """Of a kind whose choice the cache computes itself, with a choice of its own."""

    name, kind = "ignored", "position"


class Plain:
    """Has everything but the ancestry."""

    name, kind, frame, bounded, needs = "plain", "scored", "original", True, frozenset[str]()

    def keep(self, view: View, n: int) -> torch.Tensor:
        return newest(view, n)


class Undecided(Policy):
    name = "undecided"


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (Nameless(), "has no name"),
        (Ignored(), "'position'.*ignored"),
        (Plain(), r"derive its class.*keep\(view, n\)"),
        (Undecided(), r"derive its class.*keep\(view, n\)"),
        (Nameless, r"derive its class"),
        (None, r"derive its class"),
    ],
    ids=["nameless", "position", "plain", "undecided", "class", "None"],
)
def test_objects_that_are_no_policy(policy: object, says: str) -> None:
    """Refused when they are given, with what is missing. Kills: a choice that is never asked for; an error in the first
    eviction."""
    with pytest.raises(PolicyError, match=says):
        resolve(policy)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Own(Policy):
    """Keeps the newest."""

    name: ClassVar[str] = "own"

    def keep(self, view: View, n: int) -> torch.Tensor:
        return newest(view, n)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"kind": "prompts"}, "kind='prompts': it is 'position', 'scored' or 'prompt'"),
        ({"frame": "slot"}, "frame='slot': it is 'slots' or 'original'"),
        ({"needs": {"rotated-keys"}}, "needs 'rotated-keys': .*'rotated_keys'"),
        ({"needs": "mass"}, r"needs='mass': write a frozenset, frozenset\(\{'mass'\}\)"),
        ({"needs": ["mass"]}, "needs=.*: write a frozenset"),
        ({"needs": {3}}, "needs 3: "),
        ({"per_head": "no"}, "per_head='no': it is True or False"),
        ({"across_heads": 1}, "across_heads=1: it is True or False"),
        ({"bounded": None}, "bounded=None: it is True or False"),
        ({"layers_alike": "yes"}, "layers_alike='yes': it is True or False"),
        ({"min_sinks": -1}, "min_sinks=-1: it is a whole number"),
        ({"min_sinks": "4"}, "min_sinks='4': it is a whole number"),
        ({"windows": lambda self, room: 1}, "did you mean 'window'"),
        ({"layer_budgets": lambda self, *given: 1}, "did you mean 'layer_budget'"),
        ({"need": frozenset({"mass"})}, "'need' means nothing to the cache: did you mean 'needs'"),
        ({"minsinks": 1}, "did you mean 'min_sinks'"),
        ({"per_heads": False}, "did you mean 'per_head'"),
        ({"needs": {"recent"}}, r"window\(room\)"),
        ({"across_heads": True}, r"share\(view, n\)"),
        ({"across_heads": True, "per_head": False, "share": Own.keep}, "per_head=False"),
    ],
    ids=lambda x: ",".join(x) if isinstance(x, dict) else "",
)
def test_what_a_class_says_of_itself_is_checked(said: dict[str, object], says: str) -> None:
    """Kills: a misspelt attribute that stands for its default, so that another policy runs than was written."""
    with pytest.raises(PolicyError, match=f"^policy 'own'.*{says}"):
        resolve(type("Misspelt", (Own,), said)())


def test_what_a_class_may_say_besides() -> None:
    """Names that are not nearly the cache's, and fields, are the policy's own business."""

    @dataclass(frozen=True)
    class Busy(Own):
        kinds: int = 3  # an option
        best: ClassVar[int] = 7
        _need: ClassVar[int] = 1

        def frames(self) -> int:
            return 2

    assert resolve(Busy())


def test_a_ranked_policy_without_scores_is_refused() -> None:
    class Misnamed(Ranked):
        name = "own"

        def score(self, view: View, n: int) -> torch.Tensor:
            return view.origins

    with pytest.raises(PolicyError, match=r"policy 'own' .*scores\(view, n\)"):
        resolve(Misnamed())

    class Keeps(Misnamed):
        def keep(self, view: View, n: int) -> torch.Tensor:
            return newest(view, n)

    assert resolve(Keeps()), "with a keep of its own it needs no scores"


@pytest.mark.parametrize("name", ["", "my policy", "h2o:x", "7up", "a,b"])
def test_a_name_can_stand_in_an_arm(name: str) -> None:
    with pytest.raises(PolicyError, match="results are filed under it"):
        resolve(type("Named", (Own,), {"name": name})())


def test_our_names_stay_ours() -> None:
    """Kills: results of another policy under the name of a published one."""
    with pytest.raises(
        PolicyError, match=r"policy name 'h2o' on .*Named: it is that of sinkpin\.policies\.h2o:H2O"
    ):
        resolve(type("Named", (Own,), {"name": "h2o"})())


def test_an_option_nearly_ours_is_named() -> None:
    with pytest.raises(
        PolicyError, match="no option 'recnt': it has normalize, recent; did you mean 'recent'"
    ):
        resolve("h2o:recnt=0.4")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda view: view.origins[..., :-1].float(), r"\[1, 1, 8\] from scores\(\): it must be \[1, 1, 9\]"),
        (lambda view: view.origins[0].float(), r"\[1, 9\] from scores"),
        (lambda view: view.mass, "NoneType from scores.*None unless its name is in needs"),
        (lambda view: (view.origins - 5.0).sqrt(), "scored 5 of 9 candidates as NaN"),
    ],
    ids=["short", "flat", "none", "nan"],
)
def test_scores_are_one_number_for_each_candidate(answer: Callable[[View], object], says: str) -> None:
    """In `keep` as in the step of single tokens, and under adakv. Kills: a wrong formula that runs as another policy."""
    view = View(layer=0, origins=torch.arange(9).view(1, 1, 9), seen=9)
    policy = type("Scored", (Ranked,), {"name": "scored", "scores": lambda self, view, n: answer(view)})()
    with pytest.raises(PolicyError, match=says):
        policy.keep(view, 4)
    with pytest.raises(PolicyError, match=says):
        AdaKV(base=policy).keep(view, 4)
    with pytest.raises(PolicyError, match=says):
        dropped(Rule(policy, 8, "original", 0, turned=True), view)


class Loose(Own):
    """Its parent is a dataclass, itself it is not; its field would be no option."""

    loose: int = 3


@dataclass
class Thawed(Own.__base__):  # type: ignore[misc, name-defined]
    name = "thawed"

    def keep(self, view: View, n: int) -> torch.Tensor:
        return newest(view, n)


@dataclass(frozen=True)
class Picky(Own):
    depth: int = 2
    weights: tuple[int, ...] = field(default_factory=tuple)
    derived: int = field(init=False, default=0)

    name: ClassVar[str] = "picky"

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"depth={self.depth} is not above zero")


def install(monkeypatch: pytest.MonkeyPatch, name: str, home: str) -> None:
    """As if a distribution offered this policy."""
    point = EntryPoint(name, home, policies.ENTRY_POINTS)
    monkeypatch.setattr(policies, "entry_points", lambda group: [point] if group == point.group else [])


@pytest.mark.parametrize(
    ("home", "says"),
    [
        ("Plain", "must be a frozen dataclass derived from sinkpin.policies.base.Policy"),
        ("Nameless", "must be a frozen dataclass derived from sinkpin.policies.base.Policy"),
        ("Loose", "must be a frozen dataclass"),
        ("Thawed", "must be a frozen dataclass"),
        ("everything", "must be a frozen dataclass"),
        ("Absent", "cannot be loaded .*Absent"),
    ],
)
def test_an_entry_point_that_is_no_policy(monkeypatch: pytest.MonkeyPatch, home: str, says: str) -> None:
    """Kills: a traceback from `fields()` in `sinkpin compare --policy plain`."""
    install(monkeypatch, "plain", f"{__name__}:{home}")
    with pytest.raises(PolicyError, match=rf"policy 'plain' \({__name__}:{home}\) {says}"):
        resolve("plain")


def test_an_entry_point_whose_module_does_not_import(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "my_broken_policy.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    install(monkeypatch, "plain", "my_broken_policy:Plain")
    with pytest.raises(PolicyError, match=r"policy 'plain' \(my_broken_policy:Plain\) .*ZeroDivisionError"):
        resolve("plain")
    install(monkeypatch, "plain", "no such module:Plain")
    with pytest.raises(PolicyError, match=r"policy 'plain' .*cannot be loaded"):
        resolve("plain")


def test_an_installed_policy_takes_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a default that is made by a factory taken for a missing one; a derived field offered as an option; the
    class's own complaint as a traceback."""
    install(monkeypatch, "picky", f"{__name__}:Picky")
    assert resolve("picky:depth=3") == Picky(3)
    with pytest.raises(PolicyError, match="no option 'derived': it has depth, weights"):
        resolve("picky:derived=3")
    with pytest.raises(PolicyError, match="policy 'picky': depth=0 is not above zero"):
        resolve("picky:depth=0")


@pytest.mark.parametrize("weights", [(1, 2), {3}])
def test_what_json_does_not_give_back_cannot_be_written_down(
    monkeypatch: pytest.MonkeyPatch, weights: object
) -> None:
    """Kills: a saved cache that comes back under another policy; a traceback from `json` in `save`."""
    install(monkeypatch, "picky", f"{__name__}:Picky")
    with pytest.raises(PolicyError, match="cannot be written down"):
        spelled(Picky(2, weights))  # type: ignore[arg-type]
    assert spelled(resolve("adakv:base=snapkv,base.kernel=5"))[1]["base.kernel"] == 5


def test_an_object_of_ones_own_is_taken_as_it_is() -> None:
    class Own(Nameless):
        name = "own"

    own = Own()
    assert resolve(own) is own


def test_of_equal_scores_the_newer_stays() -> None:
    scores = torch.tensor([[2.0, 1.0, 2.0, 1.0, 1.0]])
    assert highest(scores, 3).tolist() == [[2, 0, 4]]


def test_the_hash_differs_by_seed_layer_and_head_and_repeats() -> None:
    index = torch.arange(1000)
    base = hashes(0, 0, torch.tensor(0), index)
    assert torch.equal(base, hashes(0, 0, torch.tensor(0), index))
    for other in (hashes(1, 0, torch.tensor(0), index), hashes(0, 1, torch.tensor(0), index)):
        assert not torch.equal(base, other)
    assert not torch.equal(base, hashes(0, 0, torch.tensor(1), index))
    assert 450 < int((base > 0).sum()) < 550, "the hash leans to one side"


def test_names_need_no_torch() -> None:
    code = "import sys, sinkpin, sinkpin.policies as p; p.names(); p.parse('random:seed=1'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
