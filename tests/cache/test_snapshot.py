"""A saved cache continues bit for bit, and every file that would not is refused with its reason."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch

from contract.cells import CACHE, feed
from families import build, pad_left, tokens
from sinkpin import BoundedCache
from sinkpin.cache import snapshot
from sinkpin.errors import CacheError, InputError, PolicyError, SinkpinError
from sinkpin.policies import names
from sinkpin.policies.base import Policy, newest

IDS = tokens(40)


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "cache.safetensors"


@pytest.mark.parametrize("stop", [9, 30], ids=["below the budget", "full"])
@pytest.mark.parametrize("policy", names())
def test_continues_bit_for_bit(policy: str, stop: int, file: Path) -> None:
    model = build()
    cache = BoundedCache(model, None if policy == "full" else 14, policy=policy, pins=[(20, 22)])
    feed(model, cache, IDS[:, :stop])
    cache.save(file)
    loaded = BoundedCache.load(file, model)
    assert (loaded.seen, loaded.nbytes(), loaded.notes) == (cache.seen, cache.nbytes(), cache.notes)
    for token in IDS[:, stop:].split(1, 1):
        assert torch.equal(feed(model, cache, token), feed(model, loaded, token))
    for layer in range(2):
        assert torch.equal(cache.origins(layer), loaded.origins(layer))
    assert cache.audit() == loaded.audit()


@pytest.mark.parametrize("policy", ["window", "h2o", "snapkv", "adakv"])
def test_rows_padding_and_share_budgets_come_back(policy: str, file: Path) -> None:
    model = build()
    ids, mask = pad_left([IDS[0, :30], IDS[0, :17]])
    cache = BoundedCache(model, "40%", policy=policy, sinks=1, pins=[[(5, 7)], []])
    model(ids, attention_mask=mask, **{CACHE: cache})
    cache.save(file)
    loaded = BoundedCache.load(file, model)
    assert loaded.budget_tokens == cache.budget_tokens == 12
    for step in range(30, 36):
        more = torch.full((2, 1), step)
        assert torch.equal(feed(model, cache, more), feed(model, loaded, more))


def test_a_place_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    """Kills: an error that names a temporary file."""
    with BoundedCache(build(), 14) as cache:
        for path, says in ((tmp_path / "missing" / "cache", "make it first"), (tmp_path, "is a folder")):
            with pytest.raises(InputError, match=says) as caught:
                cache.save(path)
            assert str(path) in str(caught.value)
            assert f".{path.name}." not in str(caught.value)
    assert not list(tmp_path.iterdir())


class Oldest(Policy):
    name = "oldest"

    def keep(self, view, n):
        return torch.arange(n).expand(*view.origins.shape[:-1], n)


class Newest(Policy):
    name = "newest"

    def keep(self, view, n):
        return newest(view, n)


def test_a_policy_of_ones_own_is_passed_again(file: Path) -> None:
    model = build()
    cache = BoundedCache(model, 14, policy=Oldest())
    feed(model, cache, IDS[:, :30])
    cache.save(file)
    with pytest.raises(PolicyError, match="pass it as policy="):
        BoundedCache.load(file, model)
    with pytest.raises(PolicyError, match="'oldest', not 'newest'"):
        BoundedCache.load(file, model, policy=Newest())
    loaded = BoundedCache.load(file, model, policy=Oldest())
    assert torch.equal(feed(model, cache, IDS[:, 30:]), feed(model, loaded, IDS[:, 30:]))


def saved(file: Path, **options: object) -> bytes:
    model = build()
    with BoundedCache(model, 14, policy="h2o", **options) as cache:
        feed(model, cache, IDS[:, :30])
        cache.save(file)
    return file.read_bytes()


def edited(raw: bytes, **changes: object) -> bytes:
    """The same file with other words in its header."""
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    about = json.loads(header["__metadata__"]["sinkpin"]) | changes
    header["__metadata__"]["sinkpin"] = json.dumps(about)
    packed = json.dumps(header).encode()
    return struct.pack("<Q", len(packed)) + packed + raw[8 + size :]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda raw: raw[:-10], "torn"),
        (lambda raw: raw[: len(raw) // 2], "torn"),
        (lambda raw: b"", "torn"),
        (lambda raw: b"hello", "torn"),
        (lambda raw: raw[:-3] + bytes([raw[-3] ^ 1]) + raw[-2:], "changed after it was written"),
        (lambda raw: edited(raw, policy={"name": "window", "options": {}}), "changed after it was written"),
        (lambda raw: edited(raw, schema=99), "schema 99"),
    ],
)
def test_damage_is_named(damage, says: str, file: Path) -> None:
    file.write_bytes(damage(saved(file)))
    with pytest.raises(SinkpinError, match=says) as refusal:
        BoundedCache.load(file, build())
    assert "\n" not in str(refusal.value)


def test_another_model_is_named(file: Path) -> None:
    saved(file)
    for other in (build(seed=1), build(positions=256)):
        with pytest.raises(CacheError, match="another model"):
            BoundedCache.load(file, other)
    with pytest.raises(CacheError, match="not there"):
        BoundedCache.load(file.with_name("elsewhere"), build())


def test_a_write_that_fails_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved(file)

    def fails(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    for broken in ("save_file", "os.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os if "." in broken else snapshot, broken.removeprefix("os."), fails)
            with pytest.raises(OSError, match="no space"):
                saved(file)
        assert file.read_bytes() == before
        assert [x.name for x in file.parent.iterdir()] == [file.name]


def test_what_may_be_taken_back_is_not_saved(file: Path) -> None:
    model = build()
    with BoundedCache(model, 14, policy="h2o") as cache:
        cache.activate_past_recording()
        feed(model, cache, IDS[:, :30])
        with pytest.raises(CacheError, match=r"crop\(0\)"):
            cache.save(file)
        cache.crop(0)
        cache.save(file)
    assert file.exists()
