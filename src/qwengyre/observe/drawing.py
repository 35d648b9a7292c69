"""A tree of calls for the terminal: a block a context line, its trunk going down, its side branches set in.

line of call 0: main, thread 3f2a (the first context line, begun by call 0)
├── calls 0-5: 812 tokens, 180 sampled, v0 v1
│   └── call 6: 74 tokens, 30 sampled, v1: leaf 20, dead end (call 7 went on without it); trajectory 2 trains 30 tokens
└── calls 7-9: 240 tokens, 96 sampled, v1: leaf 29; trajectory 0 trains 276 tokens
"""

from collections.abc import Iterator, Mapping

from rich.text import Text
from rich.tree import Tree as Drawing

from qwengyre.observe.branching import Selection
from qwengyre.trajectory.marks import lines
from qwengyre.trajectory.tree import ROOT
from qwengyre.types import Kind


def draw(found: Selection, title: str) -> Drawing:
    """The whole tree below `title`."""
    drawing = Drawing(Text(title))
    below = _children(found)
    line_of = lines(found.tree)
    for row in below.get(ROOT, ()):
        _grow(found, drawing, below, line_of, row)
    return drawing


def _children(found: Selection) -> Mapping[int, list[int]]:
    below: dict[int, list[int]] = {}
    for row, parent in enumerate(found.tree.parents):
        below.setdefault(parent, []).append(row)
    return below


def _grow(found: Selection, drawing: Drawing, below: Mapping[int, list[int]], line_of: list[int], first: int) -> None:
    """Everything from `first` on. No recursion: a harness that asks again and again makes deep trees."""
    newest = _newest(found, below)
    waiting = [(first, drawing, -1)]
    while waiting:
        row, at, line = waiting.pop()
        if line_of[row] != line:
            line = line_of[row]
            at = at.add(Text(_line(found, row, line_of, below)))
        run = [row]
        while len(after := below.get(run[-1], [])) == 1 and line_of[after[0]] == line:
            run.append(after[0])
        node = at.add(Text(_run(found, run)))
        after = sorted(after, key=lambda n: newest[n])
        for number, child in reversed(list(enumerate(after))):
            trunk = number == len(after) - 1 and line_of[child] == line
            other = line_of[child] != line
            waiting.append((child, at if trunk else drawing if other else node, line))


def _newest(found: Selection, below: Mapping[int, list[int]]) -> list[int]:
    """The newest call at or below each row: where the line went on."""
    newest = list(found.tree.calls)
    for row in range(len(newest) - 1, -1, -1):
        newest[row] = max([newest[row], *(newest[child] for child in below.get(row, ()))])
    return newest


def _line(found: Selection, row: int, line_of: list[int], below: Mapping[int, list[int]]) -> str:
    """Whose line it is: the role of a leaf of it that is no summary, where there is one."""
    leaves = [leaf for leaf in found.roles if line_of[leaf] == line_of[row]]
    plain = [leaf for leaf in leaves if not found.roles[leaf].role.endswith("-summary")] or leaves
    thread = found.tree.threads[row]
    if not plain:
        return f"line of call {line_of[row]}, thread {thread}"
    role = found.roles[plain[0]]
    return f"line of call {line_of[row]}: {role.role}, thread {thread} ({role.evidence})"


def _run(found: Selection, run: list[int]) -> str:
    tree = found.tree
    calls = list(dict.fromkeys(tree.calls[row] for row in run))
    sampled = [row for row in run if tree.kinds[row] is Kind.SAMPLED]
    versions = dict.fromkeys(version for row in sampled for _, version in tree.versions[row])
    numbers = f"call {calls[0]}" if len(calls) == 1 else f"calls {calls[0]}-{calls[-1]}"
    said = [f"{sum(len(tree.ids(row)) for row in run)} tokens, {sum(len(tree.ids(row)) for row in sampled)} sampled"]
    said += [" ".join(f"v{version}" for version in versions)] if versions else []
    withheld = [tree.calls[row] for row in sampled if row in tree.withheld]
    said += [f"withheld: call {', '.join(map(str, withheld))}"] if withheld else []
    leaf = run[-1]
    return f"{numbers}: {', '.join(said)}" + ("".join(_leaf(found, leaf)) if leaf in found.roles else "")


def _leaf(found: Selection, leaf: int) -> Iterator[str]:
    role = found.roles[leaf]
    yield f": leaf {leaf}, {role.role}"
    if role.mark:
        yield f", {role.mark} (call {role.by} went on without it)"
    for number, pick in enumerate(found.picks):
        if pick.leaf == leaf:
            yield f"; trajectory {number} trains {pick.tokens} tokens"
