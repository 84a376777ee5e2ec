"""Prometheus metrics of one server."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from api.service.jobs import Overview
from profiles_db.tables import JobPriority, JobState, now_us

_SECONDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0, 120.0, 600.0)

_GAPS = (0.0, 0.0001, 0.001, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0)


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
        self.gaps = Histogram(
            "shardwright_plan_gap",
            "Proven relative gap of published plans.",
            buckets=_GAPS,
            registry=self.registry,
        )
        self.provisional_answers = Counter(
            "shardwright_provisional_answers",
            "Requests answered with the best plan so far, since the proof took longer than they could wait.",
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "shardwright_queue_depth", "Jobs that wait, by priority.", ["priority"], registry=self.registry
        )
        self.queue_oldest_seconds = Gauge(
            "shardwright_queue_oldest_seconds", "Age of the job that has waited longest.", registry=self.registry
        )
        self.workers = Gauge(
            "shardwright_workers", "Processes that search and are not known to be dead.", registry=self.registry
        )
        self.slots = Gauge("shardwright_slots", "Searches that they can run at a time.", registry=self.registry)
        self.heartbeat_age_seconds = Gauge(
            "shardwright_heartbeat_age_seconds", "Age of the oldest of their heartbeats.", registry=self.registry
        )
        self.outdated_plans = Gauge(
            "shardwright_outdated_plans", "Plans made by another version of the planner.", registry=self.registry
        )
        self.regenerations = Gauge("shardwright_regenerations", "Regenerations that go on.", registry=self.registry)
        self.reviews = Gauge(
            "shardwright_reviews_waiting", "New revisions that wait for a person.", registry=self.registry
        )
        self.drifting_plans = Gauge(
            "shardwright_drifting_plans",
            "Plans whose steps, by reports of the last week, are not what they predict.",
            registry=self.registry,
        )
        self.jobs = Gauge("shardwright_jobs", "Jobs in the database by state.", ["state"], registry=self.registry)

    def show(self, overview: Overview) -> None:
        """Set the gauges that the database knows; they are the same in every process."""
        now = now_us()
        for state in JobState:
            self.jobs.labels(state.value).set(overview.by_state.get(state, 0))
        for priority in JobPriority:
            self.queue_depth.labels(priority.name.lower()).set(overview.queued_by_priority.get(priority, 0))
        oldest = overview.oldest_queued_us
        self.queue_oldest_seconds.set(0.0 if oldest is None else (now - oldest) / 1e6)
        workers = overview.workers
        self.workers.set(len(workers))
        self.slots.set(sum(row.num_slots for row in workers))
        self.heartbeat_age_seconds.set(max(((now - row.heartbeat_at_us) / 1e6 for row in workers), default=0.0))
        self.outdated_plans.set(overview.num_outdated_plans)

    def show_regenerations(self, num_running: int, num_waiting: int) -> None:
        """Set what is counted in the database: regenerations that go on, and revisions that wait for a person."""
        self.regenerations.set(num_running)
        self.reviews.set(num_waiting)
