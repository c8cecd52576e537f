"""Faults, drawn from the seed: the faults of a simulation, their times and durations."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from tests.sim.disk import DiskFaults
from tests.sim.engine import LEASE_S
from tests.sim.network import NetworkFaults
from tests.sim.world import Chaos

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.simulation import Simulation


@attrs.define
class Weather:
    """Which kinds of faults a simulation has. Drawn once per seed; weights are relative."""

    weights: dict[str, float]
    gap_s: float  # between two faults, on average
    chaos: Chaos
    network: NetworkFaults


# By how often they come, if at all.
FAULTS = {
    "kill": 3.0,
    "power": 3.0,
    "restart": 1.5,
    "reset": 4.0,
    "pause": 2.0,
    "disk": 1.5,
    "full": 0.7,
    "sync": 0.7,
    "slow": 1.5,
    "clock": 1.0,
    "catalogue": 0.7,
    "resize": 1.0,
    "rot": 0.5,
}


# Of those whose machine may be lost.
LOSSES = {"loss": 4.0, "zombie": 3.0, "database": 2.0, "store": 2.0}


def draw_losses(rng: Any) -> dict[str, float]:
    """The weather of a broker that has a vault, besides."""
    kinds = {"loss", *rng.sample(sorted(LOSSES), rng.randrange(0, 4))}
    return {kind: weight for kind, weight in LOSSES.items() if kind in kinds}


def draw_weather(rng: Any) -> Weather:
    """Most seeds have few kinds of faults: one alone is easier to understand, and hides no other."""
    kinds = rng.sample(sorted(FAULTS), rng.randrange(0, 5))
    crash = rng.choice((None, None, "kill", "power", "power"))
    if crash is not None and crash not in kinds:
        kinds.append(crash)
    if rng.random() < 0.25:
        kinds = [kind for kind in kinds if kind not in ("disk", "full", "sync", "catalogue", "rot")]
    rough = rng.random() < 0.5
    return Weather(
        weights={kind: FAULTS[kind] for kind in kinds},
        gap_s=rng.choice((0.2, 0.5, 1.5)),
        chaos=Chaos(
            preempt=rng.choice((0.0, 0.02, 0.1, 0.3)),
            freeze=rng.choice((0.0, 0.002, 0.02)),
            freeze_most_s=rng.choice((0.01, 0.3, 2.0)),
            tick_most_s=rng.choice((0.0001, 0.0005, 0.002)),
        ),
        network=NetworkFaults(
            short=rng.choice((0.0, 0.3, 0.8)),
            delay_most_s=rng.choice((0.0005, 0.005, 0.05)),
            stall=rng.choice((0.0, 0.01)),
            stall_most_s=rng.random() * 2.0,
            reset=0.003 if rough else 0.0,
            spurious=rng.choice((0.0, 0.02)),
            exhausted=rng.choice((0.0, 0.02)),
        ),
    )


class Storm:
    """The actor that does the damage. A broken disk stays so for a while; then, at the latest by a restart, all is well."""

    name = "storm"

    def __init__(self, simulation: "Simulation", weather: Weather) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self._host: Host = simulation.host
        self._rng = simulation.world.rng("storm")
        self._weather = weather
        self._next = self._world.now + self._gap()
        self._calm_at: list[tuple[float, Callable[[], None]]] = []
        self.over = False
        self.done: dict[str, int] = {}

    def _gap(self) -> float:
        return self._rng.expovariate(1 / self._weather.gap_s)

    def ready(self) -> bool:
        return not self.over and self._world.now >= self._due()

    def deadline(self) -> float | None:
        return None if self.over else self._due()

    def _due(self) -> float:
        return min([self._next, *(at for at, _ in self._calm_at)])

    def step(self) -> None:
        now = self._world.now
        for entry in [entry for entry in self._calm_at if entry[0] <= now]:
            self._calm_at.remove(entry)
            entry[1]()
        if now < self._next:
            return
        self._next = now + self._gap()
        weights = self._weather.weights
        if not weights:
            return
        kind = self._rng.choices(list(weights), list(weights.values()))[0]
        self.done[kind] = self.done.get(kind, 0) + 1
        getattr(self, f"_{kind}")()

    def end(self) -> None:
        """Faults stop."""
        self.over = True
        for _, calm in self._calm_at:
            calm()
        self._calm_at = []

    def _for_a_while(self, most_s: float, calm: Callable[[], None]) -> None:
        self._calm_at.append((self._world.now + self._rng.random() * most_s, calm))

    # -- the broker ---------------------------------------------------------------------------------------------------------

    def _kill(self) -> None:
        self._crash(power=False)

    def _power(self) -> None:
        self._crash(power=True)

    def _loss(self) -> None:
        self._crash(power=True, lost=True)

    def _crash(self, *, power: bool, lost: bool = False) -> None:
        if self._simulation.has("transactions") and self._rng.random() < 0.5:
            self._simulation.crash_in_decision(power=power, within=self._rng.choice((30, 150, 150)), lost=lost)
        elif self._rng.random() < 0.6:
            self._simulation.crash_after_promise(power=power, lost=lost)
        else:
            self._simulation.crash_soon(power=power, within=self._rng.choice((1, 10, 60)), lost=lost)

    def _zombie(self) -> None:
        """It wakes up after somebody else has taken over, or about then; or it loses the database and comes back."""
        rng = self._rng
        ends_s = LEASE_S * (2.0 + 3.0 * rng.random())
        if rng.random() < 0.7:
            self._simulation.zombie_wanted = LEASE_S * (0.8 + rng.random()), 0.0, ends_s
        else:
            self._simulation.zombie_wanted = 0.0, LEASE_S * rng.choice((0.1, 0.5, 1.2, 2.0)), ends_s

    def _restart(self) -> None:
        self._simulation.restart_wanted = True

    def _resize(self) -> None:
        self._simulation.resize_wanted = self._rng.randrange(1, 4)

    # -- clients ------------------------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        connected = [client for client in self._simulation.clients if client.socket is not None]
        if connected:
            self._rng.choice(connected).disconnect(rudely=self._rng.random() < 0.6)

    def _pause(self) -> None:
        client = self._rng.choice(self._simulation.clients)
        client.paused_until = self._world.now + self._rng.random() * 3.0

    # -- the machine --------------------------------------------------------------------------------------------------------

    @property
    def _disk_faults(self) -> DiskFaults:
        return self._host.medium.faults

    def _disk(self) -> None:
        faults = self._disk_faults
        which = self._rng.choice(("write_error", "read_error", "open_error"))
        setattr(faults, which, self._rng.choice((0.02, 0.2, 1.0)))
        self._world.note(f"disk: {which} {getattr(faults, which)}")
        self._for_a_while(1.0, lambda: setattr(faults, which, 0.0))

    def _sync(self) -> None:
        faults = self._disk_faults
        faults.sync_error = self._rng.choice((0.1, 1.0))
        self._world.note(f"disk: sync_error {faults.sync_error}")
        self._for_a_while(1.0, lambda: setattr(faults, "sync_error", 0.0))

    def _full(self) -> None:
        self._disk_faults.full = True
        self._world.note("disk: full")
        self._for_a_while(1.0, lambda: setattr(self._disk_faults, "full", False))

    def _slow(self) -> None:
        faults = self._disk_faults
        faults.slow, faults.slow_most_s, faults.cold = 0.2, self._rng.choice((0.01, 0.2)), 0.3

        def calm() -> None:
            faults.slow = faults.cold = 0.0

        self._for_a_while(2.0, calm)

    def _catalogue(self) -> None:
        self._simulation.set_catalogue_error(self._rng.choice((0.1, 1.0)))
        self._for_a_while(1.0, lambda: self._simulation.set_catalogue_error(0.0))

    def _database(self) -> None:
        vault = self._host.vault
        assert vault is not None
        faults, rng = vault.faults, self._rng
        name, value, most_s = rng.choice(
            (
                ("error", rng.choice((0.1, 1.0)), 1.0),
                ("unknown", rng.choice((0.1, 0.5)), 5.0),
                ("unknown", rng.choice((0.1, 0.5)), 5.0),
                ("away", True, rng.choice((1.0, 15.0))),
                ("slow_most_s", rng.choice((0.1, 1.0)), 3.0),
            )
        )
        setattr(faults, name, value)
        self._world.note(f"database: {name} {value}")
        self._for_a_while(most_s, lambda: setattr(faults, name, type(value)(0)))

    def _store(self) -> None:
        vault = self._host.vault
        assert vault is not None
        faults, rng = vault.faults, self._rng
        name, value = rng.choice(
            (("store_error", rng.choice((0.1, 0.5, 1.0))), ("store_slow_most_s", rng.choice((0.2, 2.0))))
        )
        setattr(faults, name, value)
        self._world.note(f"store: {name} {value}")
        self._for_a_while(3.0, lambda: setattr(faults, name, 0.0))

    def _rot(self) -> None:
        """A bit flips in a file of the one partition that may suffer from it."""
        topic, partition = self._simulation.perishable
        wanted = self._rng.choice((".log", ".index", ".timeindex", ".snapshot", "checkpoint", ".metadata"))
        path = self._host.medium.flip_bit(
            self._rng, lambda path: f"/{topic}-{partition}/" in path and path.endswith(wanted)
        )
        if path is not None:
            self._simulation.history.partition(topic, partition).rot(records=path.endswith(".log"))

    def _clock(self) -> None:
        jump = self._rng.choice((-86_400.0, -10.0, -0.5, 0.5, 10.0, 3_000.0))
        self._world.note(f"clock jumps by {jump} s")
        self._world.wall_offset_s += jump
