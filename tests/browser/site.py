"""A server with real plans to look at."""

from dataclasses import dataclass

from api.http.examples import CLUSTER
from tests.api.http.server import FAST, Server, decoder_request, wait_until


@dataclass(frozen=True, kw_only=True)
class Site:
    """A server, and what is stored there."""

    server: Server
    plan_ids: list[str]
    """Feasible ones of the same model in two sizes; the first two are revisions 1 and 2 of the lineage."""
    infeasible_id: str
    lineage: str

    @property
    def url(self) -> str:
        return self.server.url

    def get(self, path: str) -> dict:
        """JSON of the API."""
        answer = self.server.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: dict) -> dict:
        answer = self.server.http.post(path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()


def fill(server: Server) -> Site:
    """Ask a server for a few small plans, put them in a lineage."""
    http = server.http

    def plan(request: dict) -> str:
        answer = http.post("/v1/plans?wait=300", json=request)
        assert answer.status_code == 200, answer.text
        return answer.json()["envelope"]["plan_id"]

    two, workload = decoder_request(2, **FAST), decoder_request(2)["workload"]
    # The first one is of the whole search: what can be asked of it under a change depends on its mesh.
    plan_ids = [
        plan(decoder_request(2)),
        plan({**two, "workload": {**workload, "micro_batch": 2 * workload["micro_batch"]}}),
        plan(decoder_request(4, **FAST)),
    ]
    tiny = {**CLUSTER, "name": "too small"}
    tiny["node_groups"] = [{**group, "device_memory_bytes": 2**28} for group in CLUSTER["node_groups"]]
    infeasible_id = plan({**two, "cluster": tiny})
    for plan_id in plan_ids[:2]:
        answer = http.post("/v1/lineages", json={"name": "small-decoder", "plan": plan_id, "why": "first trial"})
        assert answer.status_code in (200, 201), answer.text
    return Site(server=server, plan_ids=plan_ids, infeasible_id=infeasible_id, lineage="small-decoder")


def regenerate(site: Site, changes: list[dict], **more: object) -> str:
    """Change the cluster of the plans, and wait until they are made again; returns the regeneration."""
    answer = site.post("/v1/clusters/two nodes of eight/revisions", {"changes": changes, **more})
    path = answer["links"]["self"]
    wait_until(lambda: site.get(path)["state"] == "done")
    return answer["regeneration_id"]
