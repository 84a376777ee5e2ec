"""The client of plans for launchers that run on asyncio."""

import asyncio

from planner.schema import Measurement, PlanRequest
from runtime_client.client import PlanClient, PlannedFor


class AsyncPlanClient:
    """A `PlanClient` whose calls are awaited; each runs in a thread, so that the event loop goes on.

    A call that is cancelled ends at once for its caller, and in its thread at the client's deadline.
    """

    def __init__(self, client: PlanClient) -> None:
        self.client = client

    async def plan(self, request: PlanRequest) -> PlannedFor:
        """As `PlanClient.plan`."""
        return await asyncio.to_thread(self.client.plan, request)

    async def active(self, lineage: str, *, model: str | None = None, world_size: int | None = None) -> PlannedFor:
        """As `PlanClient.active`."""
        return await asyncio.to_thread(self.client.active, lineage, model=model, world_size=world_size)

    async def report(self, measurement: Measurement) -> bool:
        """As `PlanClient.report`."""
        return await asyncio.to_thread(self.client.report, measurement)
