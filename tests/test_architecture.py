"""The tree keeps its shape: imports point one way, and only the cache knows transformers."""

import ast
from pathlib import Path

import pytest

import sinkpin

ROOT = Path(sinkpin.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py"))

# Each package may import those named here, besides itself, `errors` and `budget`.
ALLOWED: dict[str, set[str]] = {
    "attention": set(),
    "policies": set(),
    "cache": {"attention", "policies"},
    "evaluate": {"cache", "policies", "demo"},  # of the demo, what its model is called
    "bench": {"cache", "policies", "evaluate"},
    "contract": {"cache", "policies"},
    "demo": {"cli"},  # nothing but the names it shares with the command
    "sinks": {"cache", "attention", "policies"},
    "cli": {"evaluate", "bench", "demo", "cache", "policies", "sinks"},
}
FOUNDATION = {"errors", "budget", "spans", "card", "atomic", "statistics", "page"}
KNOWS_TRANSFORMERS = {"cache", "cli", "demo", "contract"}


def imports(path: Path) -> set[str]:
    """Every module a file imports, at the top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    here = part(path)
    if here in ("__init__", "__main__"):
        return
    for module in imports(path):
        if module.startswith("sinkpin."):
            there = module.split(".")[1]
            allowed = ALLOWED.get(here, set()) | FOUNDATION | {here}
            assert there in allowed or there in sinkpin.__all__, f"{path.name} ({here}) imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_cache_and_the_loader_know_transformers(path: Path) -> None:
    if part(path) not in KNOWS_TRANSFORMERS:
        used = {m for m in imports(path) if m.split(".")[0] == "transformers"}
        assert used <= {"transformers"}, f"{path.name} reaches into {used}"
        if part(path) in ("attention", "policies", "budget", "errors"):
            assert not used, f"{path.name} imports transformers"


def test_the_cache_knows_no_policy_by_name() -> None:
    for path in (ROOT / "cache").glob("*.py"):
        concrete = {
            m
            for m in imports(path)
            if m.startswith("sinkpin.policies.")
            and m.split(".")[2] not in ("base", "pins", "resolve", "spelled")
        }
        assert concrete <= {"sinkpin.policies.window", "sinkpin.policies.window.Window"}, (
            f"{path.name} imports {concrete}; a sliding layer's own window is the only policy the cache may know"
        )
