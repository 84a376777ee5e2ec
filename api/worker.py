"""A process that runs jobs and answers nobody."""

import signal
import threading
from types import FrameType

import structlog
from prometheus_client import start_http_server

from api.logs import configure_logs
from api.service.errors import NeedsPostgresql
from api.service.services import Services
from api.settings import Settings

_log = structlog.get_logger()


def run(settings: Settings) -> None:
    """Run jobs until SIGTERM or SIGINT; what is under way then goes back to the queue.

    Raises:
        NeedsPostgresql: the database is a SQLite file.
        InvalidDatabaseUrl, DatabaseUnavailable: from the database.
    """
    services = Services(settings)
    if services.database.is_sqlite:
        raise NeedsPostgresql(
            f"{services.database.describe()} serves one process: `shardwright serve`, with the worker in it. Give "
            "servers and workers one PostgreSQL database: --database-url postgresql://user@host/name"
        )
    configure_logs(settings)
    stop = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    try:
        services.start()
        if settings.metrics_port is not None:
            start_http_server(settings.metrics_port, settings.host, services.metrics.registry)
        _log.info("working", slots=settings.max_concurrent_solves, executor=services.runner.executor_id)
        stop.wait()
        _log.info("stopping")
    finally:
        services.stop()
