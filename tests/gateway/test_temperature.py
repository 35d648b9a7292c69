"""Executions of an evaluation are sampled at a temperature of their own, which their journal keeps."""

from gateway_doubles import user

from qwengyre.gateway.journal import read_calls


def temperatures(engine) -> list[float]:
    return [body["sampling_params"]["temperature"] for body in engine.seen]


async def test_an_execution_keeps_its_own_temperature_over_a_restart(harness, make_harness, engine):
    await harness.say([user("trained")])
    await harness.gateway.open("0-1", "token-of-0-1", 0.0)
    harness.token = "token-of-0-1"
    await harness.say([user("greedy")])
    await harness.gateway.stop()
    again = make_harness()
    await again.start()
    again.token = "token-of-0-1"
    await again.route(engine)
    await again.say([user("greedy, again")])
    assert temperatures(engine) == [0.8, 0.0, 0.0]
    assert await again.gateway.open("0-1", "token-of-0-1", 1.0) is None, "opened again by a control that restarted"
    await again.say([user("greedy, for good")])
    await again.gateway.seal("0-1")
    log = read_calls(harness.folder / "calls" / "0-1.calls")
    assert [call.temperature for call in log.calls] == [0.0] * 3
    assert temperatures(engine)[-1] == 0.0
    await again.stop()
