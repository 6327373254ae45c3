"""A storm of refusals: all calls are answered, and hardly more requests are sent than the provider allows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from agentrm import ResourceManager, VirtualClock
from tests.scheduling.driver import run


class Refused(Exception):
    """What a provider's client raises."""

    status_code = 429

    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__("refused")
        self.response = SimpleNamespace(status_code=429, headers=headers)


@dataclass
class Provider:
    """Lets `allowed` requests through in any `window_s`, and refuses the others after a round trip."""

    clock: VirtualClock
    hints: bool
    allowed: int = 2
    window_s: float = 2.0
    sent: list[float] = field(default_factory=list)
    let: list[float] = field(default_factory=list)

    async def request(self) -> None:
        self.sent.append(self.clock.elapsed)
        await asyncio.sleep(0.05)
        now = self.clock.elapsed
        recent = [t for t in self.let if t > now - self.window_s]
        if len(recent) < self.allowed:
            self.let.append(now)
            return
        hint = round(max(0.01, recent[0] + self.window_s - now), 2)
        raise Refused({"retry-after": str(hint)} if self.hints else {})


async def agent(rm: ResourceManager, provider: Provider, name: str) -> None:
    again = False
    while True:
        lease = await rm.lease(agent=name, model="m1", resumed=again).acquire_async()
        try:
            await provider.request()
        except Refused as refusal:
            lease.fail(refusal)
            again = True
        else:
            lease.settle(output_tokens=1)
            lease.release()
            return


@pytest.mark.parametrize("hints", [True, False])
@pytest.mark.parametrize("lanes", [2, 4, 16])
def test_fifty_agents_at_a_provider_that_allows_two_in_two_seconds(lanes: int, hints: bool) -> None:
    clock = VirtualClock()
    rm = ResourceManager(clock=clock, seed=7, pools={"default": {"lanes": lanes}})
    provider = Provider(clock, hints)

    async def main() -> None:
        await asyncio.gather(*(agent(rm, provider, f"agent{i}") for i in range(50)))

    run(clock, main)
    assert len(provider.let) == 50
    told = provider.sent[0] + 0.05  # when the first refusal came back: until then nobody could know
    beats = [t for t in provider.sent if t > told + 0.001]
    assert len(beats) <= 1.2 * (50 - provider.allowed)
    assert min(b - a for a, b in zip(beats, beats[1:], strict=False)) > 0.03
    assert clock.elapsed < 1.7 * provider.window_s * 50 / provider.allowed
    rm.kernel.check()


def test_another_model_of_the_pool_does_not_notice() -> None:
    def delays(storm: bool) -> list[float]:
        clock = VirtualClock()
        rm = ResourceManager(clock=clock, seed=7, pools={"default": {"lanes": 4}})
        provider = Provider(clock, True)
        waited: list[float] = []

        async def other() -> None:
            for _ in range(60):
                async with rm.lease(agent="other", model="m2", priority="interactive") as lease:
                    waited.append(lease.waited_s)
                    await asyncio.sleep(0.2)
                await asyncio.sleep(0.8)

        async def main() -> None:
            agents = [agent(rm, provider, f"agent{i}") for i in range(50 if storm else 0)]
            await asyncio.gather(other(), *agents)

        run(clock, main)
        return waited

    calm, stormy = delays(False), delays(True)
    assert sum(stormy) <= sum(calm) + 0.1  # at most the round trips of the very first calls
