"""The command `celery-llama-worker`: options, environment variables, exit codes. Runs on the main thread.

Every option is a field of `WorkerSettings`, and also an environment variable `CELERY_LLAMA_<FIELD>`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click
from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from celery_llama.protocol.errors import CeleryLlamaError, MissingExtra, ServerUnreachable
from celery_llama.protocol.jobs import describe_validation_error
from celery_llama_worker.embedded.ensure import ensure_server
from celery_llama_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from celery_llama_worker.assembly import Parts

EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 3


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command one option for each setting."""
    for name, field in reversed(WorkerSettings.model_fields.items()):
        default = "" if field.default is PydanticUndefined else f"  [default: {field.default}]"
        flag = f"--{name.replace('_', '-')}"
        help_text = f"{field.description or ''}{default}"
        # The values are validated by the settings class alone, whichever way they come.
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        metavar = "|".join(choices) or "VALUE"
        command = click.option(flag, name, default=None, metavar=metavar, help=help_text)(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="celery-llama")
def cli() -> None:
    """Decode prompt jobs from Redis as one continuous batch."""


@cli.command()
@settings_options
def start(**options: str | None) -> None:
    """Take jobs and run them until told to stop (SIGTERM finishes or hands back what runs)."""
    settings = load_settings(options)
    with errors_as_lines():
        from celery_llama_worker.assembly import run_worker

        sys.exit(run_worker(with_server(settings), click.get_current_context().obj))


@cli.command()
@settings_options
def check(**options: str | None) -> None:
    """Try settings, server, model and device, and say what is wrong."""
    settings = load_settings(options)
    with errors_as_lines():
        from celery_llama_worker.check import check_all

        sys.exit(0 if check_all(settings, click.echo) else EXIT_FAILED)


@cli.command()
@click.option("--stay/--no-stay", default=None, help="Keep everything running afterwards; the default on a terminal.")
@settings_options
def demo(stay: bool | None, **options: str | None) -> None:
    """Server, worker and Flower; a handful of prompts, their tokens side by side as they come."""
    settings = load_settings(options)
    with errors_as_lines():
        from celery_llama_worker.demo.run import run_demo

        sys.exit(run_demo(settings, stay=sys.stdin.isatty() if stay is None else stay))


def load_settings(options: dict[str, str | None]) -> WorkerSettings:
    """Options over environment over defaults; ends the program with one line if they are wrong."""
    known = {f"CELERY_LLAMA_{name.upper()}" for name in WorkerSettings.model_fields}
    for name in sorted(os.environ):
        if name.startswith("CELERY_LLAMA_") and name not in known:
            click.echo(f"celery-llama-worker: {name} is no setting, and means nothing", err=True)
    try:
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        return WorkerSettings(**given)
    except ValidationError as error:
        click.echo(f"celery-llama-worker: {describe_validation_error(error)}", err=True)
        sys.exit(EXIT_USAGE)


def with_server(settings: WorkerSettings) -> WorkerSettings:
    """Start the embedded server if that is what the URL asks for."""
    if settings.redis_url != "embedded":
        return settings
    return settings.model_copy(update={"redis_url": ensure_server()})


class errors_as_lines:
    """Translate errors that were raised on purpose into one line and an exit code; the one place that does."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, ImportError) and (error.name or "").split(".")[0] in {"llama_cpp", "numpy", "jinja2"}:
            error = MissingExtra(str(error.name), "worker")
        if isinstance(error, CeleryLlamaError):
            click.echo(f"celery-llama-worker: {error}", err=True)
            sys.exit(EXIT_UNREACHABLE if isinstance(error, ServerUnreachable) else EXIT_FAILED)
        if isinstance(error, KeyboardInterrupt):
            sys.exit(130)


def main(parts: Parts | None = None) -> None:
    """Entry point; `parts` replaces some of the worker's own."""
    cli(obj=parts)


if __name__ == "__main__":
    main()
