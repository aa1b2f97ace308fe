"""The command `celery-llama`: submit jobs, follow them, end them. Runs on the main thread.

With `--json`, standard output has one JSON object a line and nothing else, errors included.
"""

from __future__ import annotations

import io
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import redis
from pydantic import ValidationError

from celery_llama.cli.fields import job_fields, metadata_of, read_prompt
from celery_llama.cli.output import Output
from celery_llama.client.client import Client, JobHandle
from celery_llama.protocol.errors import CeleryLlamaError, JobFailed, ResultTimeout, ServerUnreachable
from celery_llama.protocol.events import Event, Failed, Finished
from celery_llama.protocol.jobs import describe_validation_error
from celery_llama.protocol.results import Result
from celery_llama.settings import Settings

EXIT_UNSUCCESSFUL, EXIT_WRONG_USE, EXIT_UNREACHABLE, EXIT_INTERRUPTED, EXIT_CLOSED_PIPE = 1, 2, 3, 130, 141
#: Without an event for this long, `submit` looks whether there is a worker.
LONELY_SECONDS = 3.0


class _Commands(click.Group):
    """Turns the errors that this project raises on purpose into a line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except JobFailed as error:
            output(ctx).result(error.result)
            ctx.exit(EXIT_UNSUCCESSFUL)
        except ResultTimeout as error:
            output(ctx).error(error.code, str(error))
            ctx.exit(EXIT_UNSUCCESSFUL)
        except ServerUnreachable as error:
            output(ctx).error(error.code, str(error))
            ctx.exit(EXIT_UNREACHABLE)
        except CeleryLlamaError as error:
            output(ctx).error(error.code, str(error))
            ctx.exit(EXIT_WRONG_USE)
        except redis.RedisError as error:
            output(ctx).error("server_refused", f"Redis refused: {error}")
            ctx.exit(EXIT_UNREACHABLE)
        except BrokenPipeError:  # as `head -1` leaves it; what is still buffered has to go somewhere at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(EXIT_CLOSED_PIPE)


def output(ctx: click.Context) -> Output:
    """The invocation's output."""
    found: Output = ctx.find_root().ensure_object(Output)
    return found


def _use_json(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        output(ctx).as_json = True


json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_use_json,
    help="Print one JSON object a line and nothing else.",
)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--redis-url", metavar="URL", help="Default: CELERY_LLAMA_REDIS_URL, else redis://localhost:6379/0.")
@click.option("--namespace", metavar="NAME", help="Default: CELERY_LLAMA_NAMESPACE, else celery-llama.")
@click.version_option(package_name="celery-llama")
@click.pass_context
def main(ctx: click.Context, redis_url: str | None, namespace: str | None) -> None:
    """Submit background LLM jobs and follow them.

    Exit codes: 0 done; 1 the job failed, was cancelled or did not end in time; 2 wrong use; 3 Redis cannot be reached
    or refuses; 130 interrupted; 141 nobody reads the output any more.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a model may say what the terminal's encoding cannot
    given = {"redis_url": redis_url, "namespace": namespace}
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
        client = Client(settings=settings)
    except ValidationError as error:
        raise click.UsageError(describe_validation_error(error)) from error
    except ValueError as error:  # its text may repeat the URL and with it the password
        raise click.UsageError("the Redis URL is not valid") from error
    ctx.meta["client"] = ctx.with_resource(client)


def _client(ctx: click.Context) -> Client:
    client: Client = ctx.meta["client"]
    return client


def command(function: Callable[..., None]) -> click.Command:
    """Make a command of a function of the context."""
    return main.command(name=function.__name__.removesuffix("_command"))(json_option(click.pass_context(function)))


@command
@click.argument("prompt", required=False)
@click.option("--system", metavar="TEXT", help="System message; makes the job a chat.")
@click.option("--max-tokens", type=int, metavar="N", help="Default: what fits.")
@click.option("--temperature", type=float, metavar="T", help="0 is greedy.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be repeated.")
@click.option("--seed", type=int, metavar="N")
@click.option("--n", type=int, metavar="N", help="How many texts.")
@click.option(
    "--json-schema", type=click.File("r", encoding="utf-8"), metavar="FILE", help="Hold the output to a schema."
)
@click.option("--priority", type=int, metavar="P", help="0 is served first, 9 last; default 5.")
@click.option("--timeout", type=float, metavar="SECONDS", help="End the job after this time of running.")
@click.option("--detach", is_flag=True, help="Print the job's id and return.")
def submit(ctx: click.Context, prompt: str | None, detach: bool, **options: Any) -> None:
    """Queue a job and stream its text.

    PROMPT is the text, `-` or nothing reads it from standard input, without the last line's end. The model continues
    a plain prompt; with --system it is a chat, and the model answers.
    """
    job = _client(ctx).submit(**job_fields(read_prompt(prompt), **options))
    if detach:
        output(ctx).line({"id": job.id}, job.id)
        _say_if_alone(ctx)
    else:
        _follow(ctx, job, _attended(ctx, job), after=0)


def _attended(ctx: click.Context, job: JobHandle) -> Iterator[Event]:
    """The job's events; where none comes soon, says so if there is nobody to write them."""
    seen = 0
    try:
        for event in job.stream(timeout=LONELY_SECONDS):
            seen = event.seq
            yield event
    except ResultTimeout:
        if seen == 0:
            _say_if_alone(ctx)
        yield from job.stream(after=seen)


def _say_if_alone(ctx: click.Context) -> None:
    """Say that nobody takes jobs, if so."""
    client = _client(ctx)
    if not client.has_worker():
        output(ctx).note(f"queued; no worker of namespace {client.settings.namespace!r} is alive")


@command
@click.argument("job")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Begin after this sequence number.")
def stream(ctx: click.Context, job: str, after: int) -> None:
    """Print a job's text as it comes, from the beginning."""
    handle = _client(ctx).job(job)
    _follow(ctx, handle, handle.stream(after), after)


def _follow(ctx: click.Context, job: JobHandle, events: Iterator[Event], after: int) -> None:
    seen = after
    event: Event | None = None
    with _interruptible(ctx, lambda: f"stream {job.id} --after {seen}"):
        for event in events:
            output(ctx).event(event)
            seen = event.seq
    if isinstance(event, Failed) or (isinstance(event, Finished) and event.status == "cancelled"):
        ctx.exit(EXIT_UNSUCCESSFUL)


@contextmanager
def _interruptible(ctx: click.Context, way_back: Callable[[], str]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        output(ctx).note(f"\nthe job goes on; come back with: celery-llama {_given(ctx)}{way_back()}")
        ctx.exit(EXIT_INTERRUPTED)


def _given(ctx: click.Context) -> str:
    """The options before the command's name as they were given, but for a URL that may hold a password."""
    url, namespace = (ctx.find_root().params[name] for name in ("redis_url", "namespace"))
    words = [] if url is None else ["--redis-url", "..." if "@" in url or "password=" in url else shlex.quote(url)]
    words += [] if namespace is None else ["--namespace", namespace]
    return "".join(f"{word} " for word in words)


@command
@click.argument("job")
@click.option("--timeout", type=float, metavar="SECONDS", help="Wait no longer than this.")
def result_command(ctx: click.Context, job: str, timeout: float | None) -> None:
    """Wait for a job's end and print its text."""
    with _interruptible(ctx, lambda: f"result {job}"):
        result: Result = _client(ctx).job(job).result(timeout)
    output(ctx).result(result)
    if result.status == "cancelled":
        ctx.exit(EXIT_UNSUCCESSFUL)


@command
@click.argument("job", required=False)
@click.option("--failed", is_flag=True, help="List the jobs that failed and may be retried.")
def status(ctx: click.Context, job: str | None, failed: bool) -> None:
    """Print a job's state, or list the failed jobs."""
    if (job is None) != failed:
        raise click.UsageError("give either a job or --failed")
    for info in _client(ctx).failed() if job is None else [_client(ctx).job(job).status()]:
        output(ctx).info(info, short=failed)


@command
@click.argument("job", required=False)
@click.option("--queued", is_flag=True, help="All jobs that no worker has taken up yet.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Only those with this; may be repeated.")
def cancel(ctx: click.Context, job: str | None, queued: bool, metadata: tuple[str, ...]) -> None:
    """End a job, keeping what it has written, or all jobs that wait."""
    if (job is None) != queued or (metadata and not queued):
        raise click.UsageError("give either a job, or --queued and what its metadata must have")
    if job is None:
        cancelled = _client(ctx).cancel_queued(metadata_of(metadata))
        output(ctx).line({"cancelled": cancelled}, f"{cancelled} cancelled")
        return
    outcome = _client(ctx).job(job).cancel()
    words = {"closed": "cancelled", "requested": "its worker was asked to cancel it", "ended": "it had ended before"}
    output(ctx).line({"id": job, "outcome": outcome}, words[outcome])


@command
@click.argument("job")
def retry(ctx: click.Context, job: str) -> None:
    """Run a failed job again, under the same id."""
    _client(ctx).job(job).retry()
    output(ctx).line({"id": job, "outcome": "queued"}, "queued")
