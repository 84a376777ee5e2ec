"""Everything one server process holds, put together."""

from api.jobs import JobRunner
from api.service.documents import DocumentService
from api.service.feed import JobFeed
from api.service.jobs import JobService
from api.service.metrics import Metrics
from api.service.planner_process import PlannerProcesses
from api.service.plans import PlanService
from api.service.solve import Solver
from api.settings import Settings
from profiles_db import migrations
from profiles_db.engine import Database

STOP_TIMEOUT_S = 10.0


class Services:
    """Use cases over one database. Nothing happens before `start`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.database = Database(settings.database_url.get_secret_value())
        feed = JobFeed()
        self._processes = PlannerProcesses(
            settings.planner_command,
            memory_bytes=settings.planner_memory_bytes,
            wall_s=settings.planner_wall_s,
        )
        self._solver = Solver(self.database, self._processes, feed, self.metrics, max_starts=settings.max_starts)
        self.runner = JobRunner(self.database, settings, self._solver.solve)
        self.documents = DocumentService(self.database)
        self.plans = PlanService(self.database, self.metrics, self.runner.enqueue)
        self.jobs = JobService(self.database, feed)

    def start(self) -> None:
        """Take the database, bring its schema up to date, start working."""
        self.database.claim_file()
        migrations.upgrade(self.database)
        self.runner.start()

    def stop(self) -> None:
        """Stop working and let go of the database."""
        self._processes.stop()
        self._solver.wait_idle(STOP_TIMEOUT_S)
        self.runner.stop()
        self.database.close()
