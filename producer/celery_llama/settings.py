"""Settings of the producing side: variables `CELERY_LLAMA_<NAME>`, or keyword arguments. No I/O, any thread."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt, StringConstraints
from pydantic_settings import BaseSettings, SettingsConfigDict

from celery_llama.ledger.ledger import Ledger
from celery_llama.protocol.names import Names

Namespace = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
RedisUrl = Annotated[str, StringConstraints(pattern=r"^(rediss?|unix)://")]


class Settings(BaseSettings):
    """What producers, readers, Flower and workers must agree on."""

    model_config = SettingsConfigDict(
        env_prefix="CELERY_LLAMA_",
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,  # a URL may hold a password
        use_attribute_docstrings=True,
    )

    redis_url: RedisUrl = "redis://localhost:6379/0"
    """Redis: `redis://`, `rediss://` (TLS) or `unix://`."""
    namespace: Namespace = "celery-llama"
    """Begins every key and channel of ours; also the queue's name. One namespace is one pool of workers."""
    max_job_bytes: PositiveInt = 1_048_576
    """Largest body of a job."""
    result_ttl_seconds: PositiveInt = 86_400
    """How long a result is kept."""
    events_ttl_seconds: PositiveInt = 3_600
    """How long a job's events are kept after its terminal event."""
    lease_seconds: int = Field(default=25, ge=3)
    """How long a worker may be silent before others take its jobs."""
    sweep_seconds: PositiveInt = 3
    """How often the workers look for lapsed leases."""
    redis_timeout_seconds: float = Field(default=10.0, gt=0)
    """How long a call to Redis may take before it is given up and tried again."""

    @property
    def names(self) -> Names:
        """The key space."""
        return Names(self.namespace)

    @property
    def ledger(self) -> Ledger:
        """The ledger's operations."""
        return Ledger(self.names, self.result_ttl_seconds, self.events_ttl_seconds, self.lease_seconds)


def resolve_settings(url: str | None, settings: Settings | None, namespace: str | None = None) -> Settings:
    """Settings from what a client was given, the environment for the rest."""
    given = {name: value for name, value in (("redis_url", url), ("namespace", namespace)) if value is not None}
    if settings is not None and not given:
        return settings
    return Settings.model_validate({**(settings.model_dump() if settings is not None else {}), **given})
