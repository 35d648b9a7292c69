"""What every transfer of weights must do, ours and a user's.

Yours: QWENGYRE_WEIGHTS=package.module:Class pytest tests/contract/test_weight_transfer.py
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from qwengyre.errors import TransferError
from qwengyre.transfer.weights import Ticket, WeightTransfer

RAY = "qwengyre.transfer.ray:RayWeights"
NAMES = [
    "qwengyre.transfer.weights:LocalWeights",
    pytest.param(RAY, marks=pytest.mark.e2e),
    *filter(None, [os.environ.get("QWENGYRE_WEIGHTS")]),
]


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """A folder of its own under /tmp: unix sockets allow 107 bytes."""
    from qwengyre.cluster.token import protect

    before = dict(os.environ)
    protect("local")
    import ray

    scratch = Path("/tmp") / f"qwengyre-test-{os.getpid()}"
    ray.init(
        address="local",
        num_cpus=0,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        log_to_driver=False,
        configure_logging=False,
        _temp_dir=str(scratch),
    )
    yield
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture(params=NAMES)
def make(request: pytest.FixtureRequest) -> Any:
    if request.param == RAY:
        request.getfixturevalue("local_ray")
    module, _, name = request.param.partition(":")
    kind = getattr(import_module(module), name)
    return lambda cell: kind(f"{request.node.name}/cell{cell}.0")


def tensors() -> dict[str, torch.Tensor]:
    return {
        "matrix": torch.arange(12, dtype=torch.float32).reshape(3, 4),
        "turned": torch.arange(6, dtype=torch.float32).reshape(2, 3).T,
        "half": torch.tensor([0.5, -1.25], dtype=torch.bfloat16),
        "scalar": torch.tensor(3.5),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }


def test_what_is_pulled_is_what_was_exposed(make):
    core: WeightTransfer = make(0)
    satellite: WeightTransfer = make(1)
    given = tensors()
    ticket = core.expose(given)
    found = satellite.pull(ticket)
    assert list(found) == list(given)
    for name, tensor in found.items():
        assert tensor.dtype == given[name].dtype
        assert torch.equal(tensor, given[name])
        assert not tensor.requires_grad
    assert ticket.num_bytes == sum(t.nbytes for t in given.values())


def test_a_ticket_names_the_tensors_as_they_were(make):
    core, satellite = make(0), make(1)
    weight = torch.ones(1000)
    ticket = core.expose({"w": weight})
    weight.zero_()
    first = satellite.pull(ticket)["w"]
    assert torch.equal(first, torch.ones(1000)), "the exposer went on changing its own"
    first.fill_(7)
    assert torch.equal(satellite.pull(ticket)["w"], torch.ones(1000)), "a puller writes into its own copy"


def test_ids_are_unique_over_cells_and_times(make):
    transfers = [make(0), make(1)]
    ids = {t.expose({"w": torch.ones(1)}).id for t in transfers for _ in range(3)}
    assert len(ids) == 6


def test_free_is_idempotent_and_leaves_other_tickets(make):
    core, satellite = make(0), make(1)
    one, other = core.expose({"w": torch.ones(1)}), core.expose({"w": torch.zeros(1)})
    core.free(one)
    core.free(one)
    assert torch.equal(satellite.pull(other)["w"], torch.zeros(1))


def test_after_free_a_pull_is_whole_or_an_error(make):
    core, satellite = make(0), make(1)
    ticket = core.expose({"w": torch.ones(3)})
    core.free(ticket)
    with suppress(TransferError):
        assert torch.equal(satellite.pull(ticket)["w"], torch.ones(3))


def until_it_fails(work: Callable[[], object]) -> None:
    """The death reaches us in a moment."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        work()


@pytest.mark.e2e
def test_tensors_of_a_dead_owner_are_an_error_in_one_line(local_ray):
    import ray

    from qwengyre.transfer.ray import RayWeights

    class Owner:
        def expose(self) -> Ticket:
            self._transfer = RayWeights("dead")
            return self._transfer.expose({"w": torch.ones(300_000)})

    owner = ray.remote(Owner).options(num_cpus=0).remote()
    ticket = ray.get(owner.expose.remote())
    here = RayWeights("here")
    assert float(here.pull(ticket)["w"].sum()) == 300_000
    ray.kill(owner)
    with pytest.raises(TransferError, match="dead/1 cannot be pulled"):
        until_it_fails(lambda: here.pull(ticket))
