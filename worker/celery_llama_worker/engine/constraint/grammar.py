"""The grammar that a job's output must follow: its own GBNF, or one made from `response_format`. Admit thread."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from celery_llama.protocol.jobs import GenerateJob
from celery_llama_worker.engine.constraint.gbnf import check_gbnf
from celery_llama_worker.engine.constraint.json_grammar import schema_grammar
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.errors import BadGrammar

_JSON_OBJECT = json.dumps({"type": "object"})


def job_grammar(job: GenerateJob, model: LlamaModel) -> str | None:
    """The job's grammar as GBNF, safe to give to llama.cpp; None without a constraint. Raises BadGrammar."""
    if job.grammar is not None:
        check_gbnf(job.grammar, lambda text: len(model.tokenize(text, add_special=False, parse_special=True)) == 1)
        return job.grammar
    if job.response_format.type == "json_object":
        return _from_schema(_JSON_OBJECT)
    if job.response_format.json_schema is not None:
        return _from_schema(json.dumps(job.response_format.json_schema.schema_))  # as text: a cache needs a key
    return None


@lru_cache(maxsize=256)
def _from_schema(schema: str) -> str:
    try:
        grammar = schema_grammar(json.loads(schema))
    except RecursionError as error:
        raise BadGrammar("the JSON schema is nested too deeply") from error
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:  # a keyword's value is of no use
        raise BadGrammar(f"the JSON schema cannot be made into a grammar: {_one_line(error)}") from error
    check_gbnf(grammar, _no_token)
    return grammar


def _no_token(_text: str) -> bool:
    return False


def _one_line(error: Any) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:160]
