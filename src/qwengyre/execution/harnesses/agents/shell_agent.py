"""A small agent: asks a model over OpenAI chat, runs the bash it answers. Standard library only.

    shell_agent.py STYLE MAX_TURNS COMMAND_SECONDS REQUEST COMMAND

with OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL in the environment and the instruction in ~/instruction.md. REQUEST
and COMMAND are the one example of style `block`. Every request, answer and command is one JSON line on standard output.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

SYSTEM = "Answer with one bash command in a fenced block."
BLOCK = re.compile(r"```(?:bash|sh)[ \t]*\n(.*?)```", re.DOTALL)
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a bash command and return its output.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
MOST_OUTPUT = 4096
TRIES = 8


def log(kind, value):
    """One JSON line."""
    print(json.dumps({"at": round(time.time(), 3), kind: value}), flush=True)


def ask(messages, tools=None):
    """(message, finish reason) of the model's answer. No time limit: a call may be queued for long."""
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages} | ({"tools": tools} if tools else {})
    log("request", body)
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    answer = json.loads(send(request))
    log("answer", answer)
    choice = answer["choices"][0]
    return choice["message"], choice["finish_reason"]


def send(request):
    """The answer's bytes. A dropped connection is asked again; an HTTP error ends the agent."""
    for attempt in range(TRIES):
        try:
            with urllib.request.urlopen(request) as response:
                return response.read()
        except urllib.error.HTTPError as error:
            log("error", f"HTTP {error.code}: {error.read(2000).decode(errors='replace')}")
            raise SystemExit(1) from None
        except OSError as error:
            log("error", f"{type(error).__name__}: {error}")
            if attempt == TRIES - 1:
                raise SystemExit(1) from None
            time.sleep(min(2**attempt * 0.25, 5))
    raise AssertionError("unreachable")


def run(command, limit_s):
    """(exit code, output): 124 when it was killed for its time. Ends with everything that it started in its session."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(
                ["bash", "-c", command],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # too long, or a NUL in it
            return 126, str(error)
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = 124
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        output.seek(0)
        text = output.read(MOST_OUTPUT).decode(errors="replace")
    if code == 124:
        text += f"\ntimed out after {limit_s:g} s"
    log("command", {"command": command, "code": code, "output": text})
    return code, text


def block(instruction, turns, limit_s, request, command):
    """Run the first block of a reply; when it fails, is missing or was cut, say so and ask again."""
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": request},
        {"role": "assistant", "content": f"```bash\n{command}\n```"},
        {"role": "user", "content": instruction},
    ]
    for _ in range(turns):
        message, finish = ask(messages)
        reply = message.get("content") or ""
        found = BLOCK.search(reply)
        if finish == "length":
            trouble = "the answer is too long."
        elif found is None:
            trouble = "no bash block."
        else:
            code, output = run(found[1], limit_s)
            if code == 0:
                return
            trouble = output.strip() or f"exit code {code}"
        messages.append({"role": "assistant", "content": reply})
        messages.append({"role": "user", "content": f"Error: {trouble[:60]}\nTry again."})


def answer(instruction, turns, limit_s, *_):
    """A reply, asked for anew until the turns are over; the last one is written into answer.txt as it is."""
    messages = [{"role": "user", "content": instruction}]
    for turn in range(turns):
        message, _ = ask(messages)
        reply = message.get("content") or ""
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": f"Again, try {turn + 2}."}]
    with open("answer.txt", "w", encoding="utf-8", errors="replace") as file:
        file.write(reply)


def tools(instruction, turns, limit_s, *_):
    """Run the calls of the bash tool until a reply has none."""
    messages = [{"role": "user", "content": instruction}]
    for _ in range(turns):
        message, _ = ask(messages, [TOOL])
        calls = message.get("tool_calls") or []
        messages.append(
            {"role": "assistant", "content": message.get("content"), **({"tool_calls": calls} if calls else {})}
        )
        if not calls:
            return
        for call in calls:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": act(call["function"], limit_s)})


def act(function, limit_s):
    """The text that answers one tool call."""
    try:
        command = json.loads(function["arguments"])["command"]
    except (ValueError, KeyError, TypeError):
        return "Error: expected a JSON object with the key 'command'"
    if function["name"] != "bash" or not isinstance(command, str):
        return f"Error: unknown tool {function['name']!r}; the only tool is 'bash'"
    code, output = run(command, limit_s)
    return output if code == 0 else f"{output}\nexit code {code}"


def main(words):
    """The style by its name."""
    with open(os.path.expanduser("~/instruction.md"), encoding="utf-8") as file:
        instruction = file.read()
    {"block": block, "answer": answer, "tools": tools}[words[0]](
        instruction, int(words[1]), float(words[2]), *words[3:]
    )


if __name__ == "__main__":
    main(sys.argv[1:])
