"""The scheduler: `step(state, event) -> (state, actions)`, pure functions on frozen values.

Owns: queue and placement, groups, bursts, staleness window, lending of cells. Never: a clock, I/O, randomness.
Read `step.py` first, then `state.py`.
"""
