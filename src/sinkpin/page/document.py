"""A page as one HTML document: the shell, filled, with styles and scripts inline and allowed by their hashes alone.

`written` is all a page calls. A page's own template is its body, with `{{name}}` where a part goes; parts are HTML
already (`markup.text` made it so). Not here: what the parts say.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def written(
    *, title: str, body: Path, parts: Mapping[str, str], data: object, style: Path, scripts: Sequence[Path]
) -> str:
    """The document. `title` is HTML; `style` and `scripts` follow those that every page has."""
    styles = _read(_HERE / "page.css") + _read(style)
    script = "".join(_read(one) for one in (_HERE / "page.js", _HERE / "axes.js", *scripts))
    shell = {
        "policy": f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(styles)}; "
        "base-uri 'none'; form-action 'none'",
        "title": title,
        "body": _filled(_read(body), parts),
        "data": as_json(data),
        "style": styles,
        "script": script,
    }
    return _filled(_read(_HERE / "shell.html"), shell)


def as_json(value: object) -> str:
    """JSON in ASCII, without what could end or open an element, and null for what is no number."""
    text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _filled(template: str, parts: Mapping[str, str]) -> str:
    """In one pass, so that nothing in a part is taken for a placeholder."""
    return _PLACE.sub(lambda place: parts[place[1]], template)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value


def _hash(inline: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}'"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
