"""Settings of the server, from arguments or `SHARDWRIGHT_*` environment variables."""

import ipaddress
import os
import sys
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from profiles_db.engine import IDLE_TRANSACTION_S

MIB = 2**20


def default_database_url() -> str:
    """A SQLite file in the user's data folder."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return f"sqlite:///{Path(base) / 'shardwright' / 'shardwright.db'}"


def default_planner_command() -> tuple[str, ...]:
    """This interpreter's planner; `-P` keeps the working directory out of its import path."""
    return (sys.executable, "-P", "-m", "planner")


class Settings(BaseSettings):
    """All knobs of one server process; none needs to be set."""

    model_config = SettingsConfigDict(env_prefix="SHARDWRIGHT_", env_ignore_empty=True, frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 takes a free port."""
    allow_remote: bool = False
    """Serve other machines though nothing asks who calls: no key was made and no identity provider is set up."""
    require_keys: bool = False
    """Ask every caller for a key, also on this machine and before the first key is made."""
    oidc_issuer: str | None = None
    """Accept bearer tokens of this OpenID Connect issuer; needs an audience and the URL of its keys too."""
    oidc_audience: str | None = None
    oidc_jwks_url: str | None = None
    oidc_tenant_claim: str = "tenant"
    oidc_scope_claim: str = "scope"
    session_s: Annotated[int, Field(ge=60, le=30 * 86_400)] = 12 * 3600
    """After so long, who logged in to the dashboard logs in again."""
    database_url: SecretStr = Field(default_factory=lambda: SecretStr(default_database_url()))
    max_body_bytes: Annotated[int, Field(ge=1024)] = 64 * MIB
    planner_command: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        default_factory=default_planner_command
    )
    planner_memory_bytes: Annotated[int, Field(ge=64 * MIB)] = 8 * 1024 * MIB
    """Address space of one planner process."""
    planner_wall_s: Annotated[float, Field(gt=0)] = 1800.0
    """A planner that runs longer is stopped; requests carry their own, deterministic limit."""
    max_calls: Annotated[int, Field(ge=1)] = 20_000
    """Calls in the forward of a model, blocks among them; requests with more are refused."""
    max_simulated_calls: Annotated[int, Field(ge=1)] = 5_000
    """As `max_calls`, of a model whose step is replayed while somebody waits: 1,000 take about two seconds."""
    max_search_s: Annotated[float, Field(gt=0)] = 1200.0
    """Seconds that a request may let its search run (`search.wall_clock_s`)."""
    max_deterministic_time: Annotated[float, Field(gt=0)] = 2000.0
    """As `search.deterministic_time` of a request; the default there is 40."""
    max_concurrent_solves: Annotated[int, Field(ge=1)] = Field(
        default_factory=lambda: max(1, (os.cpu_count() or 1) // 2)
    )
    embedded_worker: bool = True
    """Search in the server too; without, `shardwright worker` processes do, which need PostgreSQL."""
    max_solves_per_key: Annotated[int, Field(ge=1)] = 8
    """Searches of one priority that one key may have running at a time, over all workers; further ones wait."""
    max_jobs_per_key: Annotated[int, Field(ge=1)] = 1000
    """Unfinished jobs that one key may have; further requests are refused until some are done."""
    max_starts: Annotated[int, Field(ge=1)] = 3
    """Times that a job whose process died is started again before it is given up."""
    metrics_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Where a worker shows its metrics, on `host`; servers do at `/metrics`."""
    signing_key_file: Path | None = None
    """Private Ed25519 key (`shardwright keys new-signing-key`) that signs plans as they are handed out."""
    webhook_url: str | None = None
    """Told when a regeneration has ended; needs a secret too. No address from a request is ever called."""
    webhook_secret: SecretStr | None = None
    """Signs what the webhook is told (HMAC-SHA256)."""
    drift_step_percent: Annotated[float, Field(gt=0, lt=100)] = 10.0
    """A plan drifts when steps take so much more or less time than predicted (median of the last five reports)."""
    drift_peak_percent: Annotated[float, Field(gt=0)] = 5.0
    """As `drift_step_percent`, of memory above what is predicted."""
    regeneration_poll_s: Annotated[float, Field(gt=0)] = 1.0
    queue_poll_s: Annotated[float, Field(gt=0)] = 0.2
    heartbeat_s: Annotated[float, Field(gt=0)] = 5.0
    heartbeat_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """On PostgreSQL, jobs of a process that has been silent for so long are taken over."""
    idle_transaction_s: Annotated[float, Field(ge=1)] = IDLE_TRANSACTION_S
    """PostgreSQL ends a transaction whose process stands still for so long, so that it holds no locks."""
    log_format: Literal["json", "console"] = "console"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @model_validator(mode="after")
    def _oidc_is_whole(self) -> Self:
        parts = (self.oidc_issuer, self.oidc_audience, self.oidc_jwks_url)
        if any(parts) and not all(parts):
            raise ValueError(
                "oidc_issuer, oidc_audience and oidc_jwks_url belong together; set all of them or none"
            )
        return self

    @model_validator(mode="after")
    def _several_heartbeats_are_missed_before_death(self) -> Self:
        if self.heartbeat_timeout_s < 3 * self.heartbeat_s:
            raise ValueError(
                "heartbeat_timeout_s must be at least three times heartbeat_s, or living workers seem dead"
            )
        return self

    @model_validator(mode="after")
    def _webhook_is_whole(self) -> Self:
        if (self.webhook_url is None) != (self.webhook_secret is None):
            raise ValueError("webhook_url and webhook_secret belong together; set both or none")
        if self.webhook_url is not None and not self.webhook_url.startswith(("http://", "https://")):
            raise ValueError("webhook_url is no address of HTTP")
        return self

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
