"""What llama-server's own unit tests ask of a single request, asked of this engine; listed in docs/protocol.md.

Behaviour, not code: the names of fields, the form of answers, and the model differ. The jobs run side by side.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_llama.protocol.errors import InvalidJob
from celery_llama_worker.engine.llama.model import LlamaModel
from tests.whole_engine import Answer, WholeEngine, whole_engine

SLOT_TOKENS = 256
PROTOCOL = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")

LIFE = "I believe the meaning of life is"
LONG = "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore. " * 12
BOOK = [{"role": "system", "content": "Book"}, {"role": "user", "content": "What is the best book"}]
PARTS = [{"type": "text", "text": "What is "}, {"type": "text", "text": "the best book"}]
WORDS = ["the", "a", "is", "and", "to", "of", "in", "it", "I", "you", "book", "The", "It", "best"]


def schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def greedy(**fields: Any) -> dict[str, Any]:
    return {"temperature": 0.0, **fields}


def tokens_of(model: LlamaModel, text: str) -> list[int]:
    return model.tokenize(text, add_special=False, parse_special=True)


#: Behaviour: a job, and what holds for its answer. A job may need the model to be written.
Check = Callable[[Answer, dict[str, Answer], LlamaModel], bool]
CASES: dict[str, tuple[Callable[[LlamaModel], dict[str, Any]], Check]] = {
    "`max_tokens` is how many are generated": (
        lambda _: greedy(prompt=LIFE, max_tokens=8),
        lambda answer, _, model: (
            (answer.result.usage.prompt_tokens, answer.result.usage.completion_tokens)
            == (len(tokens_of(model, LIFE)), 8)
            and (answer.result.finish_reason, answer.result.status) == ("length", "incomplete")
        ),
    ),
    "the streamed texts are the text, their tokens its tokens": (
        lambda _: greedy(prompt="Write a joke about AI.", max_tokens=64, ignore_eos=True),
        lambda answer, _, model: (
            answer.streamed() == answer.text
            and b"".join(map(model.piece, answer.tokens)).decode() == answer.text
            and len(answer.tokens) == 64
        ),
    ),
    "the last event has finish reason, usage and timings": (
        lambda _: greedy(prompt=LIFE, max_tokens=10),
        lambda answer, *_: (
            answer.events[-1].model_dump(include={"finish_reason", "usage", "timings"})
            == {
                "finish_reason": ["length"],
                "usage": answer.result.usage.model_dump(),
                "timings": answer.result.timings.model_dump(),
            }
            and answer.result.timings.tokens_per_s is not None
        ),
    ),
    "the seed is told": (
        lambda _: {"prompt": LIFE, "max_tokens": 1, "seed": 42},
        lambda answer, *_: answer.result.seed == 42,
    ),
    "without a seed one is chosen and told": (
        lambda _: {"prompt": LIFE, "max_tokens": 1},
        lambda answer, *_: answer.result.seed is not None and answer.result.timings.tokens_per_s is None,
    ),
    "a prompt may be token ids": (
        lambda model: greedy(prompt=tokens_of(model, LIFE), max_tokens=8),
        lambda answer, others, _: answer.text == others["`max_tokens` is how many are generated"].text,
    ),
    "stop strings end the text before them": (
        lambda _: greedy(
            prompt="User: Hello.\nAssistant: Hi.\nUser: Tell me a joke.\nAssistant:", stop=["User:", "\n\n"]
        ),
        lambda answer, *_: (
            answer.result.finish_reason == "stop"
            and bool(answer.text)
            and not re.search("User:|\n\n", answer.text)
            and answer.streamed() == answer.text
        ),
    ),
    "an end token ends the text and is not part of it": (
        lambda _: greedy(messages=[{"role": "user", "content": "Say hi."}]),
        lambda answer, _, model: (
            (answer.result.finish_reason, answer.result.status) == ("stop", "completed")
            and "<|" not in answer.text
            and not set(answer.tokens) & model.end_tokens
        ),
    ),
    "`ignore_eos` goes on": (
        lambda _: greedy(messages=[{"role": "user", "content": "Say hi."}], ignore_eos=True, max_tokens=64),
        lambda answer, _, model: (
            answer.result.usage.completion_tokens == 64 and not set(answer.tokens) & model.end_tokens
        ),
    ),
    "without `max_tokens` the text may fill the slot": (
        lambda _: greedy(prompt="Hi how are you", ignore_eos=True),
        lambda answer, *_: (
            answer.result.usage.prompt_tokens + answer.result.usage.completion_tokens == SLOT_TOKENS
            and answer.result.finish_reason == "length"
        ),
    ),
    "a long prompt may be cut at its beginning": (
        lambda _: greedy(prompt=LONG, truncate="left", max_tokens=64, ignore_eos=True),
        lambda answer, *_: (
            (answer.result.usage.prompt_tokens, answer.result.usage.completion_tokens) == (SLOT_TOKENS - 64, 64)
        ),
    ),
    "a chat is written with the model's template": (
        lambda _: greedy(messages=BOOK, max_tokens=8),
        lambda answer, _, model: (
            answer.result.usage.prompt_tokens
            == len(
                tokens_of(
                    model,
                    "<|im_start|>system\nBook<|im_end|>\n<|im_start|>user\nWhat is the best book<|im_end|>\n"
                    "<|im_start|>assistant\n",
                )
            )
            and answer.result.finish_reason == "length"
        ),
    ),
    "a message's content may be in parts": (
        lambda _: greedy(messages=[BOOK[0], {"role": "user", "content": PARTS}], max_tokens=8),
        lambda answer, others, _: answer.text == others["a chat is written with the model's template"].text,
    ),
    "a constant is the text": (
        lambda _: {"messages": BOOK, "response_format": schema({"const": "42"})},
        lambda answer, *_: json.loads(answer.text) == "42" and answer.result.status == "completed",
    ),
    "a list of item schemas is a tuple": (
        lambda _: {"messages": BOOK, "response_format": schema({"items": [{"type": "integer"}]})},
        lambda answer, *_: [type(item) for item in json.loads(answer.text)] == [int],
    ),
    "`json_object` is an object": (
        lambda _: {"messages": BOOK, "response_format": {"type": "json_object"}, "max_tokens": 40},
        lambda answer, *_: answer.text.startswith("{"),
    ),
    "a grammar is kept to": (
        lambda _: {"messages": BOOK, "grammar": 'root ::= "a"{5,5}'},
        lambda answer, *_: (answer.text, answer.result.finish_reason) == ("aaaaa", "stop"),
    ),
    "log-probabilities come with every token": (
        lambda _: greedy(messages=BOOK, max_tokens=5, logprobs=True, top_logprobs=10),
        lambda answer, _, model: (
            len(answer.logprobs) == 5
            and all(
                entry.logprob <= 0.0
                and entry.id == entry.top_logprobs[0].id
                and entry.bytes == list(model.piece(entry.id))
                and len({top.id for top in entry.top_logprobs}) == 10
                and sorted(entry.top_logprobs, key=lambda top: -top.logprob) == entry.top_logprobs
                for entry in answer.logprobs
            )
            and "".join(entry.token for entry in answer.logprobs) == answer.text
        ),
    ),
    "log-probabilities are streamed": (
        lambda _: {"messages": BOOK, "max_tokens": 5, "logprobs": True, "top_logprobs": 2, "stop": ["no such text"]},
        lambda answer, *_: (
            [entry for event in answer.token_events() for entry in event.logprobs or []] == answer.logprobs
        ),
    ),
    "a bias of -100 bans tokens": (
        lambda model: greedy(
            prompt="What is the best book",
            max_tokens=48,
            logit_bias={str(token): -100.0 for word in WORDS for token in tokens_of(model, f" {word}")},
        ),
        lambda answer, *_: not set(WORDS) & set(answer.text.split(" ")) and bool(answer.text),
    ),
    "a bias of 100 decides": (
        lambda model: {"prompt": LIFE, "max_tokens": 3, "logit_bias": {str(tokens_of(model, " cat")[0]): 100.0}},
        lambda answer, *_: answer.text == " cat cat cat",
    ),
    "`n` choices are different texts of one prompt": (
        lambda _: {"messages": BOOK, "max_tokens": 8, "n": 2, "seed": 3, "temperature": 1.0},
        lambda answer, *_: (
            [choice.index for choice in answer.result.choices] == [0, 1]
            and answer.result.choices[0].text != answer.result.choices[1].text
            and all(answer.streamed(choice.index) == choice.text for choice in answer.result.choices)
            and {choice.finish_reason for choice in answer.result.choices} == {"length"}
            and answer.result.usage.completion_tokens == 16
        ),
    ),
    "greedy choices are equal": (
        lambda _: greedy(prompt=LIFE, max_tokens=8, n=3),
        lambda answer, others, _: (
            {choice.text for choice in answer.result.choices} == {others["`max_tokens` is how many are generated"].text}
        ),
    ),
}

#: Behaviour: a job that is refused, and words of the reason.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a prompt that is too long": ({"prompt": LONG}, "the prompt has .* tokens; this worker's slots have 256"),
    "a chat that is too long": ({"messages": BOOK * 100}, "the prompt has .* tokens; this worker's slots have 256"),
    "a prompt with images": ({"prompt": {"prompt_string": LIFE, "multimodal_data": "iVBORw0"}}, "prompt"),
    "several prompts at once": ({"prompt": [[1, 2], LIFE]}, "prompt"),
    "an empty prompt": ({"prompt": ""}, "the prompt is empty"),
    "no tokens wanted": ({"prompt": LIFE, "max_tokens": 0}, "max_tokens"),
    "`response_fields`": ({"prompt": LIFE, "response_fields": ["content"]}, "response_fields"),
    "`cache_prompt`": ({"prompt": LIFE, "cache_prompt": False}, "cache_prompt"),
    "`post_sampling_probs`": ({"prompt": LIFE, "post_sampling_probs": True}, "post_sampling_probs"),
    "a bias by words": ({"prompt": LIFE, "logit_bias": {" the": -100}}, "logit_bias"),
    "a bias as pairs": ({"prompt": LIFE, "logit_bias": [[5, -100]]}, "logit_bias"),
    "an unknown response format": ({"messages": BOOK, "response_format": {"type": "sound"}}, "response_format"),
    "a schema that is none": ({"messages": BOOK, "response_format": schema(123)}, "schema"),
    "a schema with a type that is none": ({"messages": BOOK, "response_format": schema({"type": 123})}, "type"),
    "a schema of an unknown type": ({"messages": BOOK, "response_format": schema({"type": "hiccup"})}, "type"),
    "a grammar that is none": ({"messages": BOOK, "grammar": "root ::= ("}, "the grammar, line 1"),
    "messages that are null": ({"messages": None}, "give either prompt or messages"),
    "messages that are a text": ({"messages": "string"}, "messages"),
    "messages that are numbers": ({"messages": [123]}, "messages.0"),
    "a message without anything": ({"messages": [BOOK[0], {}]}, "messages.1.role"),
    "a role that is a number": ({"messages": [{"role": 123, "content": ""}]}, "messages.0.role"),
    "a content that is a number": ({"messages": [{"role": "system", "content": 123}]}, "messages.0.content"),
}


@pytest.fixture(scope="module")
def whole(demo_model: LlamaModel) -> Iterator[WholeEngine]:
    with whole_engine(demo_model, slots=16, ctx_per_slot=SLOT_TOKENS) as whole:
        yield whole


@pytest.fixture(scope="module")
def answers(whole: WholeEngine) -> dict[str, Answer]:
    return whole.run({name: job(whole.model) for name, (job, _) in CASES.items()})


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_as_llama_server(answers: dict[str, Answer], demo_model: LlamaModel, name: str) -> None:
    _, check = CASES[name]

    assert check(answers[name], answers, demo_model), answers[name].result


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(whole: WholeEngine, name: str) -> None:
    body, reason = REFUSED[name]

    with pytest.raises(InvalidJob, match=reason):
        whole.add(name, body)


def test_every_case_is_listed_in_the_protocol() -> None:
    section = PROTOCOL.partition("## Beside llama-server")[2].partition("\n## ")[0]

    assert [name for name in [*CASES, *REFUSED] if f"| {name} |" not in section] == []
