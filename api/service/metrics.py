"""Prometheus metrics of one server."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0, 120.0, 600.0)


class Metrics:
    """What an operator watches. Each server has its own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.http_requests = Counter(
            "shardwright_http_requests",
            "HTTP requests by route and status.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.http_seconds = Histogram(
            "shardwright_http_request_seconds",
            "Time to answer a request, the wait for a plan included.",
            ["method", "route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.plan_requests = Counter(
            "shardwright_plan_requests",
            "Plan requests by what they met: a known plan, a job under way, or nothing yet.",
            ["met"],
            registry=self.registry,
        )
        self.planner_starts = Counter(
            "shardwright_planner_starts", "Planner processes started.", registry=self.registry
        )
        self.solves = Counter(
            "shardwright_solves", "Finished solves by result.", ["result"], registry=self.registry
        )
        self.solve_seconds = Histogram(
            "shardwright_solve_seconds",
            "Time in the planner process.",
            buckets=(*_SECONDS, 1800.0),
            registry=self.registry,
        )
        self.jobs = Gauge("shardwright_jobs", "Jobs in the database by state.", ["state"], registry=self.registry)
