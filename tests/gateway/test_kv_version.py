"""What an engine says of the keys and values it kept across a publish is recorded."""

from collections.abc import Callable
from typing import Any

from gateway_doubles import Harness, Running, ScriptedEngine, user

from qwengyre.gateway.journal import read_calls


async def test_the_kv_version_of_a_stretch_is_in_the_journal(
    make_harness: Callable[..., Harness], engine: ScriptedEngine
) -> None:
    ids = engine.encode("hello<|im_end|>")

    async def script(call: Running) -> dict[str, Any]:
        answer = engine.part(ids, "stop", [(3, 0, 2), (4, 2, len(ids))])
        answer["choices"][0]["weight_versions"][1]["kv_version"] = "3"
        return answer

    engine.script = script
    harness = make_harness()
    await harness.start()
    await harness.route(engine)
    await harness.say([user("hi")])
    await harness.stop()
    [call] = read_calls(harness.journal).calls
    assert [(s.version, s.kv_version) for s in call.stretches] == [(3, -1), (4, 3)]
