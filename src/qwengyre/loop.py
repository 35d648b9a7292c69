"""One run, top to bottom:

query -> N executions (harness in a sandbox) -> model calls (gateway, exact tokens) -> trajectory tree -> score
      -> up to Jmax weighted trajectories -> micro-steps -> gradients -> one optimizer step -> weights -> engines

`schedule.step` decides what happens next, a World makes it happen, and every outcome comes back as an event.
The real World is `cluster/control.py`, the one in virtual time `sim/world.py`; nothing here knows which it is.
"""

from collections.abc import Sequence
from typing import Protocol

from qwengyre.schedule.actions import Action
from qwengyre.schedule.events import Event
from qwengyre.schedule.state import State
from qwengyre.schedule.step import step


class World(Protocol):
    """The seam between deciding and doing: two methods."""

    def begin(self, actions: Sequence[Action]) -> None:
        """Start doing; never waits and never refuses. Every outcome comes back as an event."""
        ...

    async def next_event(self) -> Event:
        """The next thing that happened, in the order in which the run shall see it."""
        ...


class Journal(Protocol):
    """Where events and actions are written before the actions begin: they alone replay the run to `state`."""

    def append(self, event: Event, actions: Sequence[Action], state: State) -> None: ...


async def run(state: State, actions: Sequence[Action], world: World, journal: Journal) -> State:
    """Run until the scheduler says done. `state` and `actions` are a fresh start's, or what a resume recovered.

    Decides nothing (`step` does) and touches nothing (`world` does). Ends when `state.done`.
    """
    while not state.done:
        world.begin(actions)
        event = await world.next_event()
        state, actions = step(state, event)
        journal.append(event, actions, state)
    return state
