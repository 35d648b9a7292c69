"""Keep it small: no source file over 400 lines, and at most 80 configuration keys. Prints the table; fails above."""

import sys
from pathlib import Path

from pydantic import BaseModel

from qwengyre.config import Config

MAX_LINES, MAX_KEYS = 400, 80
ROOT = Path(__file__).parent.parent / "src" / "qwengyre"


def keys(model: type[BaseModel]) -> int:
    """Leaves of the configuration tree."""
    total = 0
    for field in model.model_fields.values():
        inner = field.annotation
        nested = isinstance(inner, type) and issubclass(inner, BaseModel)
        total += keys(inner) if nested else 1
    return total


def main() -> int:
    """0 when everything is within its limit."""
    sizes = {p.relative_to(ROOT): len(p.read_text().splitlines()) for p in ROOT.rglob("*.py")}
    packages: dict[str, int] = {}
    for path, lines in sizes.items():
        package = path.parts[0] if len(path.parts) > 1 else "."
        packages[package] = packages.get(package, 0) + lines
    for package, lines in sorted(packages.items()):
        print(f"{package:12} {lines:6}")
    print(f"{'total':12} {sum(sizes.values()):6} lines in {len(sizes)} files, {keys(Config)} configuration keys")
    large = {path: lines for path, lines in sizes.items() if lines > MAX_LINES}
    for path, lines in large.items():
        print(f"{path}: {lines} lines, at most {MAX_LINES}: split it", file=sys.stderr)
    return int(bool(large) or keys(Config) > MAX_KEYS)


if __name__ == "__main__":
    sys.exit(main())
