"""Everything one server process holds, put together."""

from api.runner import JobRunner
from api.service.authentication import Authenticator
from api.service.callers import Caller
from api.service.documents import DocumentService
from api.service.errors import NeedsPostgresql
from api.service.feed import JobFeed
from api.service.jobs import JobService
from api.service.keys import KeyService
from api.service.limits import RequestLimits
from api.service.lineages import LineageService
from api.service.measurements import MeasurementService
from api.service.metrics import Metrics
from api.service.overview import OverviewService
from api.service.planner_process import PlannerProcesses
from api.service.plans import PlanService
from api.service.regenerations.clusters import ClusterRevisionService
from api.service.regenerations.driver import RegenerationDriver
from api.service.regenerations.service import RegenerationService
from api.service.regenerations.webhook import Webhook
from api.service.sessions import SessionService
from api.service.signing import Signer
from api.service.simulations import SimulationService
from api.service.solve import Solver
from api.settings import Settings
from planner.schema import PlanRequest
from profiles_db import migrations
from profiles_db.engine import Database
from profiles_db.measurements import Bounds
from profiles_db.tables import JobPriority, JobRow

STOP_TIMEOUT_S = 10.0


class Services:
    """Use cases over one database. Nothing happens before `start`."""

    def __init__(self, settings: Settings, *, has_worker: bool = True) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.database = Database(
            settings.database_url.get_secret_value(), idle_transaction_s=settings.idle_transaction_s
        )
        self.keys = KeyService(self.database)
        self.authenticator = Authenticator(settings, self.keys)
        self.sessions = SessionService(self.database, self.authenticator, self.keys, session_s=settings.session_s)
        feed = JobFeed()
        signer = None if settings.signing_key_file is None else Signer.of(settings.signing_key_file)
        processes = PlannerProcesses(
            settings.planner_command,
            memory_bytes=settings.planner_memory_bytes,
            wall_s=settings.planner_wall_s,
        )
        self._solver = Solver(self.database, processes, feed, self.metrics, max_starts=settings.max_starts)
        self.runner = JobRunner(self.database, settings, self._solver, has_worker=has_worker)
        self.documents = DocumentService(self.database)
        self.plans = PlanService(
            self.database,
            self.metrics,
            self.runner.enqueue,
            max_jobs_per_key=settings.max_jobs_per_key,
            limits=_limits(settings),
            signer=signer,
        )
        self.jobs = JobService(self.database, feed, self.runner.cancel)
        self.overview = OverviewService(self.database, _bounds(settings))
        self.simulations = SimulationService(self.database, self.plans, max_calls=settings.max_simulated_calls)
        self.measurements = MeasurementService(self.database, self.simulations, _bounds(settings))
        self.lineages = LineageService(self.database, signer)
        self.clusters = ClusterRevisionService(self.database)
        webhook = _webhook(settings)
        self.regenerations = RegenerationService(self.database, has_webhook=webhook is not None)
        self._regenerating = RegenerationDriver(
            self.database,
            self._submit_regeneration,
            webhook,
            poll_s=settings.regeneration_poll_s,
            lease_s=0.0 if self.database.is_sqlite else settings.heartbeat_timeout_s,
        )

    def prepare(self) -> None:
        """Take the database and bring its schema up to date.

        Raises:
            NeedsPostgresql: no worker runs here, and on SQLite none could elsewhere.
            DatabaseInUse, DatabaseUnavailable: that is not possible.
        """
        if self.database.is_sqlite and not self.runner.has_worker:
            raise NeedsPostgresql(
                f"{self.database.describe()} serves one process, the worker in it; leave embedded_worker on, or "
                "give servers and workers one PostgreSQL database"
            )
        self.database.claim_file()
        self.database.check()
        migrations.upgrade(self.database)

    def start(self) -> None:
        """Prepare the database and start working."""
        self.prepare()
        self.runner.start()
        self._regenerating.start()

    def _submit_regeneration(self, caller: Caller, request: PlanRequest) -> JobRow:
        return self.plans.submit_request(caller, request, JobPriority.REGENERATION)

    def stop(self) -> None:
        """Stop working and let go of the database; harmless where nothing was started."""
        self._regenerating.stop()
        self._solver.stop()
        self._solver.wait_idle(STOP_TIMEOUT_S)
        self.runner.stop()
        self.database.close()


def _limits(settings: Settings) -> RequestLimits:
    return RequestLimits(
        max_calls=settings.max_calls,
        max_search_s=settings.max_search_s,
        max_deterministic_time=settings.max_deterministic_time,
    )


def _bounds(settings: Settings) -> Bounds:
    return Bounds(step=settings.drift_step_percent / 100, peak=settings.drift_peak_percent / 100)


def _webhook(settings: Settings) -> Webhook | None:
    if settings.webhook_url is None or settings.webhook_secret is None:
        return None
    return Webhook(settings.webhook_url, settings.webhook_secret.get_secret_value())
