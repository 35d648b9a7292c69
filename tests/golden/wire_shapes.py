"""How six harnesses write the same talk on the wire, after the real shapes: what moves, what is re-serialised, what is
tidied, what is left out. A talk is a list of ("user", text), ("answer", wire answer), ("result", call id, text) and
("notice", text).
"""

import json
import re
from functools import partial
from typing import Any

Talk = list[tuple[Any, ...]]
Json = dict[str, Any]
CACHED = {"cache_control": {"type": "ephemeral"}}
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}, "n": {"type": "number"}}}


class Claude:
    """Anthropic messages: the cache mark moves, a lone part is a string, commands and blanks are tidied."""

    path, name = "/v1/messages?beta=true", "claude-code"
    system = "You are a terminal agent."

    def __init__(self) -> None:
        self.calls = 0

    def headers(self, agent: str = "") -> dict[str, str]:
        extra = {"x-claude-code-agent-id": agent} if agent else {}
        return {"x-claude-code-session-id": "s1", "anthropic-beta": "x-2026", **extra}

    def body(self, talk: Talk, *, tools: bool = True, system: str = "", ask: str = "") -> Json:
        self.calls += 1
        messages: list[Json] = []
        for kind, *rest in talk:
            if kind == "user":
                messages.append({"role": "user", "content": [{"type": "text", "text": rest[0]}]})
            elif kind == "notice":
                messages.append({"role": "system", "content": rest[0]})
            elif kind == "answer":
                messages.append({"role": "assistant", "content": [self._tidied(b) for b in rest[0]["content"]]})
            elif messages[-1]["role"] == "user" and messages[-1]["content"][0]["type"] == "tool_result":
                messages[-1]["content"].append(self._result(*rest))
            else:
                messages.append({"role": "user", "content": [self._result(*rest)]})
        if ask:
            messages[-1] = {**messages[-1], "content": [*messages[-1]["content"], {"type": "text", "text": ask}]}
        for message in messages[:-1]:
            if isinstance(message["content"], list) and [b["type"] for b in message["content"]] == ["text"]:
                message["content"] = message["content"][0]["text"]
        if isinstance(messages[-1]["content"], list):
            messages[-1]["content"][-1] = {**messages[-1]["content"][-1], **CACHED}
        head = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={self.calls:05x};"}]
        return {
            "model": "m",
            "messages": messages,
            "system": [*head, {"type": "text", "text": system or self.system, **CACHED}],
            "tools": [{"name": "Bash", "description": "Run.", "input_schema": SCHEMA}] if tools else [],
            "metadata": {"user_id": json.dumps({"session_id": "s1"})},
            "max_tokens": 500,
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": []},
            "stream": True,
        }

    def _tidied(self, block: Json) -> Json:
        if block["type"] != "tool_use":
            return block
        edited = {k: re.sub(r"^cd \S+ && ", "", v) if k == "command" else v for k, v in block["input"].items()}
        edited = {k: re.sub(r" +$", "", v, flags=re.M) if isinstance(v, str) else v for k, v in edited.items()}
        return {**block, "input": {**edited, "replace_all": False}}

    def _result(self, call: str, text: str) -> Json:
        return {"type": "tool_result", "tool_use_id": call, "content": text}

    def answer(self, text: str) -> Json:
        """The message of a stream."""
        blocks: list[Json] = []
        for event in events(text):
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "json": ""})
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                for field in ("text", "thinking", "signature"):
                    if field in delta:
                        blocks[-1][field] += delta[field]
                blocks[-1]["json"] += delta.get("partial_json", "")
        for block in blocks:
            written = block.pop("json")
            if written:
                block["input"] = json.loads(written)
        return {"content": blocks}

    def ids(self, answer: Json) -> list[str]:
        return [b["id"] for b in answer["content"] if b["type"] == "tool_use"]


class Codex:
    """OpenAI responses: items with ids and status, keys in any order, reasoning handed back or not."""

    path, name = "/v1/responses", "codex"

    def __init__(self, reasoning: str = "all") -> None:
        self.calls, self._reasoning = 0, reasoning

    def headers(self, agent: str = "") -> dict[str, str]:
        extra = {"x-openai-subagent": "collab_spawn", "x-codex-parent-thread-id": "t0"} if agent else {}
        return {"session-id": "s1", "thread-id": agent or "t0", **extra}

    def body(self, talk: Talk, *, tools: bool = True, system: str = "", ask: str = "") -> Json:
        self.calls += 1
        items: list[Json] = [self._message("developer", system or "You are a terminal agent.")]
        for kind, *rest in talk:
            if kind == "answer":
                items += [self._echoed(item) for item in rest[0]["output"]]
            elif kind == "result":
                items.append({"id": f"fco_{self.calls}", "type": "function_call_output", "call_id": rest[0]})
                items[-1]["output"] = rest[1]
            else:
                items.append(self._message("developer" if kind == "notice" else "user", rest[0]))
        if self._reasoning == "none":
            items = [item for item in items if item["type"] != "reasoning"]
        if ask:
            items.append(self._message("user", ask))
        body: Json = {
            "model": "m",
            "input": [dict(sorted(i.items(), reverse=bool(self.calls % 2))) for i in items],
            "tools": [{"type": "function", "name": "Bash", "parameters": SCHEMA, "strict": False}] if tools else [],
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "parallel_tool_calls": tools,
            "prompt_cache_key": f"k{self.calls}",
            "stream": True,
        }
        return dict(sorted(body.items(), reverse=bool(self.calls % 3)))

    def _message(self, role: str, text: str) -> Json:
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}

    def _echoed(self, item: Json) -> Json:
        if item["type"] == "reasoning" and self._reasoning == "other":
            return {**item, "summary": [{"type": "summary_text", "text": "in other words"}]}
        return item

    def answer(self, text: str) -> Json:
        done = [e["item"] for e in events(text) if e["type"] == "response.output_item.done"]
        return {"output": done}

    def ids(self, answer: Json) -> list[str]:
        return [i["call_id"] for i in answer["output"] if i["type"] == "function_call"]


class ChatShape:
    """OpenAI chat as four harnesses send it back. `echo`: qwen-code, opencode, pi or mini-swe-agent."""

    path = "/v1/chat/completions"

    def __init__(self, echo: str, reasoning: str = "all") -> None:
        self.name, self.calls, self._reasoning = echo, 0, reasoning

    def headers(self, agent: str = "") -> dict[str, str]:
        if self.name != "opencode":
            return {}
        return {"x-session-id": agent or "s1", **({"x-parent-session-id": "s1"} if agent else {})}

    def body(self, talk: Talk, *, tools: bool = True, system: str = "", ask: str = "") -> Json:
        self.calls += 1
        messages: list[Json] = [{"role": "system", "content": system or "You are a terminal agent."}]
        for kind, *rest in talk:
            if kind == "answer":
                messages.append(self._echoed(rest[0]))
            elif kind == "result":
                messages.append({"role": "tool", "tool_call_id": rest[0], "content": rest[1]})
            else:
                messages.append({"role": "system" if kind == "notice" else "user", "content": rest[0]})
        if ask:
            messages.append({"role": "user", "content": ask})
        if self.name == "qwen-code" and isinstance(messages[-1]["content"], str):
            messages[-1] = {**messages[-1], "content": [{"type": "text", "text": messages[-1]["content"], **CACHED}]}
        declared = (
            {"tools": [{"type": "function", "function": {"name": "Bash", "parameters": SCHEMA}}]} if tools else {}
        )
        absent = {"qwen-code": {}, "opencode": {"tools": []}}.get(self.name, {"tools": None})
        stream = self.name != "mini-swe-agent"
        options = {"stream_options": {"include_usage": True}} if stream else {}
        return {"model": "m", "messages": messages, "stream": stream, **options, **(declared or absent)}

    def _echoed(self, message: Json) -> Json:
        echoed = dict(message)
        if self._reasoning == "none":
            echoed.pop("reasoning_content", None)
        elif self._reasoning == "other" and echoed.get("reasoning_content"):
            echoed["reasoning_content"] = "in other words"
        calls = echoed.get("tool_calls")
        if self.name == "mini-swe-agent":
            return {k: v for k, v in echoed.items() if v is not None}
        if self.name == "pi":
            echoed["content"] = echoed.get("content") if (echoed.get("content") or "").strip() else None
            if "reasoning_content" in echoed:
                echoed["reasoning"] = echoed.pop("reasoning_content")
        if self.name == "opencode":
            echoed["content"] = echoed.get("content") or ""
        if self.name == "qwen-code" and calls:
            echoed["content"] = ("", None)[self.calls % 2] if not echoed.get("content") else echoed["content"]
        if calls:
            echoed["tool_calls"] = [self._compact(c) for c in calls]
        return echoed

    def _compact(self, call: Json) -> Json:
        arguments = json.loads(call["function"]["arguments"])
        arguments = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in arguments.items()}
        written = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)
        return {**call, "function": {**call["function"], "arguments": written}}

    def answer(self, text: str) -> Json:
        if self.name == "mini-swe-agent":
            return json.loads(text)["choices"][0]["message"]
        message: Json = {"role": "assistant", "content": ""}
        for chunk in events(text):
            for choice in chunk["choices"]:
                delta = choice["delta"]
                for field in ("content", "reasoning_content"):
                    if delta.get(field):
                        message[field] = message.get(field, "") + delta[field]
                for call in delta.get("tool_calls", []):
                    bare = {k: v for k, v in call.items() if k != "index"}
                    message.setdefault("tool_calls", []).append(bare)
        return message

    def ids(self, answer: Json) -> list[str]:
        return [call["id"] for call in answer.get("tool_calls") or []]


def events(text: str) -> list[Json]:
    """The data of an event stream."""
    lines = (line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: "))
    return [json.loads(line) for line in lines if line != "[DONE]"]


SHAPES: dict[str, Any] = {
    "claude-code": Claude,
    "codex": Codex,
    **{name: partial(ChatShape, name) for name in ("qwen-code", "opencode", "pi", "mini-swe-agent")},
}
