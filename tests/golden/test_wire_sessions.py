"""Whole sessions in the shapes of real harnesses: which tree they give, what is trained, what a journal costs."""

import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from wire_shapes import SHAPES, Talk

sys.path.insert(0, str(Path(__file__).parent.parent / "gateway"))
from gateway_doubles import Harness, ScriptedEngine, conditioning, make_tokenizer

from qwengyre import profiles
from qwengyre.gateway.echo import Edits
from qwengyre.gateway.journal import read_calls, rebuild
from qwengyre.gateway.render import TemplateRenderer
from qwengyre.trajectory.roles import roles
from qwengyre.trajectory.tree import Tree
from qwengyre.types import Kind, Sampling

ALL = sorted(SHAPES)
TOKENIZER = make_tokenizer()
RENDERER = TemplateRenderer(TOKENIZER)


class Session:
    """One harness's shape, its thread's talk, and the gateway."""

    def __init__(self, shape: Any, harness: Harness, engine: ScriptedEngine) -> None:
        self.shape, self.harness, self.engine = shape, harness, engine
        self.talk: Talk = [("user", "Do the task. é <|im_end|>")]

    async def ask(self, said: str, talk: Talk | None = None, *, agent: str = "", **fields: Any) -> Any:
        """The model says `said`; the answer as the harness understands it."""
        self.engine.replies.append(said)
        body = self.shape.body(self.talk if talk is None else talk, **fields)
        url = f"{self.harness.url}/x/{self.harness.token}{self.shape.path}"
        answer = await self.harness.client.post(url, json=body, headers=self.shape.headers(agent))
        assert answer.status_code == 200, answer.text
        return self.shape.answer(answer.text)

    async def turn(self, said: str, result: str = "out", **fields: Any) -> None:
        answer = await self.ask(said, **fields)
        self.talk.append(("answer", answer))
        ids = self.shape.ids(answer)
        self.talk += (("result", call, f"{result} {at}") for at, call in enumerate(ids))
        if not ids:
            self.talk.append(("user", f"go on {len(self.talk)}"))

    @property
    def tree(self) -> Tree:
        return rebuild(self.harness.journal)

    @property
    def matches(self) -> list[str]:
        return [call.match for call in read_calls(self.harness.journal).calls]

    def check(self) -> None:
        """What the engine was conditioned on is what the journal says, and nothing sampled is held twice."""
        log, tree = read_calls(self.harness.journal), self.tree
        sent = {tuple(asked["token_ids"]) for asked in self.engine.seen}
        assert sent == {tuple(ids.tolist()) for ids in conditioning(log).values()}
        sampled = [row for row, kind in enumerate(tree.kinds) if kind is Kind.SAMPLED]
        assert len(sampled) == len(log.calls)
        assert len({tree.calls[row] for row in sampled}) == len(sampled)


def call(turn: int, *, text: str = "", think: bool = True) -> str:
    arguments = {"n": float(turn), "command": f"cd /app && echo {turn} 'é'   \nls  "}
    thought = f"<think>\nI think of {turn}.\n</think>\n\n" if think else ""
    return f"{thought}{text}<tool_call>\n{json.dumps({'name': 'Bash', 'arguments': arguments})}\n</tool_call>"


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine()
    engine.encode = lambda text: TOKENIZER.encode(text, add_special_tokens=False)
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
async def start(tmp_path: Path, engine: ScriptedEngine) -> AsyncIterator[Callable[..., Any]]:
    made: list[Harness] = []

    async def start(name: str, sub: str = "", **options: Any) -> Session:
        settings = {"window": 2**20, "edits": Edits.of(profiles.edits(name))}
        harness = Harness(tmp_path / sub, RENDERER, sampling=Sampling(1.0, 2000), **settings)
        made.append(harness)
        await harness.start()
        await harness.route(engine)
        return Session(SHAPES[name](**options), harness, engine)

    yield start
    for harness in made:
        await harness.stop()


@pytest.mark.parametrize("name", ALL)
async def test_fifty_turns_with_thinking_are_one_leaf(start: Any, name: str) -> None:
    session = await start(name)
    for turn in range(50):
        said = call(turn, text="I look. \n" if turn % 3 else "")
        if turn % 7 == 0:
            said = f"<think>\nhm {turn}\n</think>\n\nSo. {turn}"
        elif turn == 20:
            said = call(turn) + "\n" + call(turn + 1, think=False)
        await session.turn(said)
    tree = session.tree
    assert session.matches == ["root"] + ["extend"] * 49
    assert len(list(tree.leaves())) == 1
    assert tree.num_tokens == tree.lengths[-1], "no token is held, or encoded, twice"
    session.check()


@pytest.mark.parametrize("name", [n for n in ALL if n != "claude-code"])
async def test_three_ways_of_echoing_reasoning_give_one_tree(start: Any, name: str) -> None:
    shapes = []
    for reasoning in ("all", "none", "other"):
        session = await start(name, reasoning, reasoning=reasoning)
        for turn in range(6):
            await session.turn(call(turn) if turn % 2 else f"<think>\nhm\n</think>\n\nSo {turn}")
        tree = session.tree
        shapes.append((tree.parents, tree.kinds, [tree.ids(r).tolist() for r in range(len(tree))]))
    assert shapes[0] == shapes[1] == shapes[2]


@pytest.mark.parametrize("name", ALL)
async def test_a_compaction_with_a_kept_tail(start: Any, name: str) -> None:
    """A summary is asked for, a new context starts with it, and the newest turn comes along as context."""
    session = await start(name)
    for turn in range(4):
        await session.turn(call(turn))
    own = {"tools": False} if name != "claude-code" else {}
    summary = await session.ask("The summary: all went well.", ask="Respond with TEXT ONLY: a summary.", **own)
    assert summary
    kept = session.talk[-2:]
    session.talk = [("user", "This goes on. The summary: all went well."), *kept]
    await session.turn("Done.")
    tree, log = session.tree, read_calls(session.harness.journal)
    assert session.matches[-1] in ("root", "branch")
    raw = log.calls[3].output.tolist()
    tail = log.calls[-1].suffix.tolist()
    assert any(tail[i : i + len(raw)] == raw for i in range(len(tail))), "the kept turn is the ids that were sampled"
    found = {leaf: role.role for leaf, role in roles(tree, log.calls).items()}
    assert sorted(found.values()) in (["main", "main", "main-summary"], ["main", "main-summary"])
    session.check()


@pytest.mark.parametrize("name", ALL)
async def test_cleared_results_asked_again_and_dropped_turns(start: Any, name: str) -> None:
    session = await start(name)
    for turn in range(4):
        await session.turn(call(turn))
    whole = list(session.talk)
    # Old tool results are cleared without a word: a branch at the first of them, later answers are context.
    cleared = [(k, r[0], "[cleared]") if k == "result" and i == 2 else (k, *r) for i, (k, *r) in enumerate(whole)]
    await session.ask("after clearing", cleared)
    tree = session.tree
    old, new = list(tree.leaves())
    shared = set(tree.path(old)) & set(tree.path(new))
    assert sum(tree.kinds[r] is Kind.SAMPLED for r in shared) == 1
    assert sum(tree.kinds[r] is Kind.SAMPLED for r in tree.path(new)) == 2
    # The same request again, while the first answer was delivered: a call of its own, a sibling.
    await session.ask("", whole)
    await session.ask("again", whole)
    assert session.matches[-2:] == ["extend", "branch"]
    # The harness drops its last turn and corrects the model: the dropped answer stays a leaf.
    dropped = [*whole[:-2], ("user", "Answer with a tool call.")]
    await session.ask(call(9), dropped)
    assert session.matches[-1] == "branch"
    assert len(list(session.tree.leaves())) == 4
    session.check()


@pytest.mark.parametrize("name", ["claude-code", "codex", "opencode"])
async def test_sub_agents_at_once_are_threads_of_their_own(start: Any, name: str) -> None:
    session = await start(name)
    await session.turn(call(0))
    answers: dict[str, Any] = {}
    for turn in range(2):
        for agent in ("a1", "a2"):
            talk: Talk = [("user", f"Sub-task of {agent}.")]
            if agent in answers:
                talk += [("answer", answers[agent]), ("result", session.shape.ids(answers[agent])[0], "out")]
            answers[agent] = await session.ask(call(turn), talk, agent=agent, system="You are a sub-agent.")
        await session.turn(call(turn + 1))
    tree, log = session.tree, read_calls(session.harness.journal)
    assert session.matches == ["root", "root", "branch", "extend", "extend", "extend", "extend"]
    assert len(list(tree.leaves())) == 3
    found = [role.role for role in roles(tree, log.calls).values()]
    assert sorted(found) == ["main", "sub-agent", "sub-agent"]
    session.check()


async def test_a_changed_value_is_a_branch_in_every_protocol(start: Any) -> None:
    for name in ALL:
        session = await start(name, name)
        await session.turn(call(0))
        kind, answer = session.talk[-2]
        changed = json.loads(json.dumps(answer).replace("echo 0", "echo 1"))
        assert changed != answer
        await session.ask("done", [*session.talk[:-2], (kind, changed), session.talk[-1]])
        assert session.matches == ["root", "branch"], name
        assert len(list(session.tree.leaves())) == 2


async def test_a_journal_is_linear_in_what_is_new(start: Any) -> None:
    """500 turns: at most 1.2 times 8 bytes a token and the text."""
    session = await start("pi")
    for turn in range(500):
        await session.turn(call(turn), result="line of output " * 30)
    tree = session.tree
    text = len(TOKENIZER.decode(tree.path_ids(len(tree) - 1)).encode())
    size = session.harness.journal.stat().st_size
    assert size <= 1.2 * (8 * tree.num_tokens + text), size / (8 * tree.num_tokens + text)
