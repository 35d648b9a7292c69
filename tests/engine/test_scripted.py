"""Forced tokens: true ids, true log-probs, and a script that goes on where it was cut."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from engine_cases import full_logprobs

from qwengyre.engine.script import Reply, Turn, load_script
from qwengyre.engine.scripted import ScriptedEngine
from qwengyre.errors import ConfigError
from qwengyre.model import load

SCRIPT = r"""
[[rule]]
last = "summarise"
progress = 'step-([0-9]+)'
replies = ["at step-{k}"]
[[rule]]
system = "sub"
first = 'file (?P<file>\S+)'
replies = [{calls = [{name = "bash", arguments = {command = "touch {file}"}}]}, "done"]
[[rule]]
execution = "^9-"
turns = [0, 1]
replies = [{raw = "cut <tool_call>", finish = "length"}, {raw = ""}]
[[rule]]
any = "free"
sample = true
[[rule]]
first = "go"
progress = 'step-([0-9]+)'
replies = [{times = 3, think = "hm", text = "é", calls = [{name = "a", arguments = '{"x": step-{k}'}]}, "end"]
"""


class Talk:
    """A client of a scripted engine that writes ChatML itself."""

    def __init__(self, engine: ScriptedEngine, tokenizer: Any, url: str) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self.client = httpx.AsyncClient(base_url=url, timeout=60)

    def prompt(self, *messages: str) -> list[int]:
        """Each "role: text"."""
        split = (m.partition(": ") for m in messages)
        text = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, _, text in split)
        return self.tokenizer.encode(text + "<|im_start|>assistant\n")

    async def post(self, ids: list[int], *, handle: str = "0-0", max_tokens: int = 500, t: float = 0.8) -> Any:
        sampling = {"max_tokens": max_tokens, "temperature": t, "stop_token_ids": [self.tokenizer.eos_token_id]}
        body = {"request_id": f"r{np.random.random()}", "token_ids": ids, "sampling_params": sampling, "handle": handle}
        return (await self.client.post("/inference/v1/generate", json=body)).json()

    async def say(self, *messages: str, **fields: Any) -> tuple[str, str]:
        answer = await self.post(self.prompt(*messages), **fields)
        choice = answer["choices"][0]
        return self.tokenizer.decode(choice["token_ids"]), choice["finish_reason"]


@pytest.fixture(scope="module")
def folder() -> Path:
    return load.resolve("tiny-long")


@pytest.fixture
async def talk(folder: Path, tmp_path: Path) -> AsyncIterator[Talk]:
    script = tmp_path / "s.toml"
    script.write_text(SCRIPT)
    torch.set_num_threads(1)
    engine = ScriptedEngine(
        load.causal_lm(folder), script=str(script), name="cell0.0", eos_ids=load.eos_ids(folder), window=4096
    )
    talk = Talk(engine, load.tokenizer(folder, str(load.TEMPLATE)), await engine.start())
    await engine.open()
    yield talk
    await talk.client.aclose()
    await engine.stop()


STEP = '<think>\nhm\n</think>\n\né\n<tool_call>\n{"name": "a", "arguments": {"x": step-%d}\n</tool_call>'


async def test_replies_follow_the_conversation(talk: Talk) -> None:
    assert await talk.say("user: go") == (STEP % 0 + "<|im_end|>", "stop")
    assert await talk.say("user: go", "assistant: step-1", "user: x") == (STEP % 2 + "<|im_end|>", "stop")
    assert await talk.say("user: go on from step-2") == ("end<|im_end|>", "stop")
    assert await talk.say("user: go", "user: step-7 summarise") == ("at step-8<|im_end|>", "stop")
    sub = ("system: sub", "user: write the file a/b now")
    assert "touch a/b" in (await talk.say(*sub))[0]
    assert await talk.say(*sub, "assistant: x", "tool: y") == ("done<|im_end|>", "stop")


async def test_odd_outputs(talk: Talk) -> None:
    assert await talk.say("user: x", handle="9-0") == ("cut <tool_call>", "length")
    assert await talk.say("user: x", "assistant: y", handle="9-0") == ("<|im_end|>", "stop")
    text, finish = await talk.say("user: go", max_tokens=5)
    assert (STEP % 0).startswith(text)
    assert finish == "length"
    assert (await talk.say("user: free", max_tokens=4))[1] == "length"


async def test_a_conversation_without_an_answer_says_so(talk: Talk) -> None:
    error = (await talk.post(talk.prompt("user: hello there")))["error"]
    assert error["type"] == "invalid"
    assert "no rule of" in error["message"]
    assert "hello there" in error["message"]


async def test_a_mistake_in_a_script_is_told_and_the_engine_stays(talk: Talk) -> None:
    def mistaken(turn: object) -> str:
        raise KeyError("step")

    script, talk.engine._script = talk.engine._script, mistaken
    error = (await talk.post(talk.prompt("user: go")))["error"]
    assert "script failed on this conversation: KeyError('step')" in error["message"]
    talk.engine._script = script
    assert (await talk.say("user: go"))[1] == "stop"


@pytest.mark.parametrize("t", [0.8, 0.0])
async def test_log_probs_are_those_of_the_model(talk: Talk, folder: Path, t: float) -> None:
    ids = talk.prompt("user: go")
    choice = (await talk.post(ids, t=t))["choices"][0]
    truth = full_logprobs(load.causal_lm(folder), ids, choice["token_ids"], t or 1.0)
    recorded = [token["logprob"] for token in choice["logprobs"]["content"]]
    assert recorded == pytest.approx(truth.tolist(), abs=1e-4)


async def test_an_answer_goes_on_where_it_was_cut(talk: Talk) -> None:
    ids = talk.prompt("user: go")
    whole = (await talk.post(ids))["choices"][0]["token_ids"]
    for cut in (1, 7, len(whole) - 1):
        rest = (await talk.post(ids + whole[:cut]))["choices"][0]["token_ids"]
        assert whole[:cut] + rest == whole
    answer = await talk.post([*ids, whole[1]])
    assert "answers otherwise" in answer["error"]["message"]


async def test_forced_and_sampled_calls_share_a_batch(talk: Talk) -> None:
    answers = await asyncio.gather(*(talk.say(f"user: {w}", max_tokens=40) for w in ("go", "free", "go", "free")))
    assert [a[0] for a in answers[::2]] == [answers[0][0]] * 2
    assert (STEP % 0).startswith(answers[0][0])


def test_a_python_function(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from qwengyre.engine.script import Reply\ndef say(turn): return Reply(turn.last)")
    assert load_script(f"{file}:say")(Turn("0-0", "", (("user", "hi"),))) == Reply("hi")
    for bad in (f"{file}:other", "nowhere.toml", "qwengyre.nowhere:f"):
        with pytest.raises(ConfigError, match=r"engine\.args\.script"):
            load_script(bad)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("", "no \\[\\[rule\\]\\]"),
        ("[[rule]]\nlast = 'x'", "give `replies`"),
        ("[[rule]]\nlsat = 'x'\nsample = true", "did you mean 'last'"),
        ("[[rule]]\nlast = '('\nsample = true", "not a regular expression"),
        ("[[rule]]\nprogress = 'x'\nsample = true", "one group"),
        ("[[rule]]\nreplies = [{tex = 'x'}]", "did you mean 'text'"),
        ("[[rule]]\nreplies = [{finish = 'x'}]", "'stop' or 'length'"),
    ],
)
def test_mistakes_in_rules_are_named(tmp_path: Path, rules: str, said: str) -> None:
    file = tmp_path / "s.toml"
    file.write_text(rules)
    with pytest.raises(ConfigError, match=said):
        load_script(str(file))
