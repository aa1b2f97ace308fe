"""llama.cpp's failures: what a wrong file, a failed call or a failed sampler leaves behind."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_llama.protocol.jobs import GenerateJob
from celery_llama_worker.engine.llama.devices import Device
from celery_llama_worker.engine.llama.engine import LlamaEngine, LlamaModel
from celery_llama_worker.engine.llama.sampling import make_sampler
from celery_llama_worker.engine.plan import Copy, Piece, Plan, Sampled, Sampler, Trim
from celery_llama_worker.errors import StartupError
from celery_llama_worker.settings import WorkerSettings
from tests.decoding import generate, operate, read, run
from tests.tiny_model import EOS, TURN_END, tiny_model, write_tiny_model

PROMPT = [40, 41, 42, 43]
CPU = Device("CPU", "a processor", is_gpu=False)
GPU = Device("GPU0", "a graphics card", is_gpu=True)


class FailingEngine(LlamaEngine):
    """Returns the given codes in place of llama_decode's, after it has decoded."""

    codes: list[int]

    def _decode(self, batch: object) -> int:
        code = super()._decode(batch)  # type: ignore[arg-type]
        return self.codes.pop(0) if self.codes else code


class BrokenSampler:
    """Raises in place of sampling."""

    quick = True

    def sample(self, _row: object, _candidates: object) -> Sampled:
        raise RuntimeError("broken")

    def accept(self, token: int) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(tiny_model()) as model:
        yield model


@pytest.fixture
def engine(model: LlamaModel) -> Iterator[FailingEngine]:
    settings = WorkerSettings(slots=4, ctx_per_slot=256, chunk_tokens=16, prefill_tokens=64, threads=1)
    with FailingEngine(model, settings) as engine:
        engine.codes = []
        yield engine


@pytest.fixture
def greedy(model: LlamaModel) -> Sampler:
    return make_sampler(GenerateJob(prompt="x", temperature=0), model, seed=1)


def test_a_missing_model_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"^cannot read the model .*/none\.gguf: No such file or directory$"):
        LlamaModel(tmp_path / "none.gguf")


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="is a folder"):
        LlamaModel(tmp_path)


def test_a_file_of_another_format_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("Once upon a time")

    with pytest.raises(StartupError, match="is not a GGUF file"):
        LlamaModel(tmp_path / "text.gguf")


@pytest.mark.parametrize("keep", [8, 100, 20_000, 100_000])
def test_a_truncated_model_is_refused_without_noise(
    tmp_path: Path, keep: int, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "half.gguf").write_bytes(tiny_model().read_bytes()[:keep])

    with pytest.raises(StartupError, match=r"^llama\.cpp cannot load .*half\.gguf .*is the file complete") as caught:
        LlamaModel(tmp_path / "half.gguf")

    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_llama_cpps_log_goes_to_pythons_at_debug(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG), LlamaModel(tiny_model()):
        pass

    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    assert any("tiny" in record.getMessage() for record in caplog.records)
    assert capfd.readouterr() == ("", "")


def test_the_model_knows_its_tokens(model: LlamaModel) -> None:
    tokens = model.tokenize("the 日本", add_special=False, parse_special=True)

    assert b"".join(map(model.piece, tokens)).decode() == "the 日本"
    assert model.end_tokens == {EOS, TURN_END}
    assert model.piece(TURN_END) == b""
    assert model.special_text(TURN_END) == "<|im_end|>"


def test_a_model_may_be_closed_twice() -> None:
    model = LlamaModel(tiny_model())
    model.close()
    model.close()


def test_settings_that_exclude_each_other_stop_the_start(model: LlamaModel) -> None:
    settings = WorkerSettings(slots=2, ctx_per_slot=256, flash_attention="off", cache_type="q8_0")

    with pytest.raises(StartupError, match="flash_attention=auto"):
        LlamaEngine(model, settings)


def test_a_context_longer_than_the_model_knows_is_warned_of(
    model: LlamaModel, caplog: pytest.LogCaptureFixture
) -> None:
    with LlamaEngine(model, WorkerSettings(slots=1, ctx_per_slot=4096)):
        pass

    assert "trained on 2048" in caplog.text


def test_cells_that_will_not_fit_into_memory_are_warned_of(
    model: LlamaModel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build for GPUs that finds none has its cells there, too."""
    monkeypatch.setattr("celery_llama_worker.engine.llama.context.available_bytes", lambda: 1000)
    monkeypatch.setattr("celery_llama_worker.engine.llama.context.found_devices", lambda: [CPU])
    monkeypatch.setattr("llama_cpp.llama_cpp.llama_supports_gpu_offload", lambda: True)
    with LlamaEngine(model, WorkerSettings(slots=1, ctx_per_slot=256)):
        pass

    assert "the cells need about" in caplog.text


@pytest.mark.parametrize(("gpu_layers", "warned"), [(-1, False), (99, False), (1, True), (0, True)])
def test_cells_of_layers_on_a_gpu_take_no_memory_of_the_machines(
    model: LlamaModel,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    gpu_layers: int,
    warned: bool,
) -> None:
    monkeypatch.setattr("celery_llama_worker.engine.llama.context.available_bytes", lambda: 1000)
    monkeypatch.setattr("celery_llama_worker.engine.llama.context.found_devices", lambda: [GPU, CPU])
    with LlamaEngine(model, WorkerSettings(slots=1, ctx_per_slot=256, gpu_layers=gpu_layers)):
        pass

    assert ("the cells need about" in caplog.text) == warned


@pytest.mark.parametrize("slots", [1, 255])
def test_from_one_slot_to_the_most_that_llama_cpp_knows(model: LlamaModel, slots: int) -> None:
    with LlamaEngine(model, WorkerSettings(slots=slots, ctx_per_slot=64, threads=1)) as engine:
        assert read(engine, slots - 1, PROMPT) is None


def test_a_samplers_fault_is_its_sequences_own(engine: FailingEngine, greedy: Sampler) -> None:
    expected = generate(engine, 0, PROMPT, greedy, 1)

    result = run(engine, Piece(0, 0, PROMPT, greedy), Piece(1, 0, PROMPT, BrokenSampler()), operations=[Trim(0, 0)])

    assert result.faults == {1: "broken"}
    assert {slot: sampled.token for slot, sampled in result.sampled.items()} == {0: expected[0]}


def test_a_call_without_room_leaves_the_cells(engine: FailingEngine, greedy: Sampler) -> None:
    generate(engine, 0, [40] * 64, greedy, 1)
    for start in (64, 128, 192):
        read(engine, 0, [41] * 64, None, start)

    result = run(engine, Piece(0, 256, [42], greedy))

    assert result.error is not None
    assert not result.error.cells_lost
    assert not result.sampled


def test_a_call_that_llama_cpp_refuses_leaves_the_cells(engine: FailingEngine, greedy: Sampler) -> None:
    expected = generate(engine, 0, PROMPT, greedy, 2)
    operate(engine, Trim(0, 4))

    result = run(engine, Piece(0, 9, [expected[0]], greedy))  # five cells too far

    assert result.error is not None
    assert not result.error.cells_lost
    assert read(engine, 0, [expected[0]], greedy, start=4) == expected[1]


def test_an_aborted_call_is_undone(engine: FailingEngine, greedy: Sampler) -> None:
    expected = generate(engine, 0, PROMPT, greedy, 2)
    operate(engine, Trim(0, 4))
    engine.codes = [2]

    result = run(engine, Piece(0, 4, [expected[0]], greedy))

    assert result.error is not None
    assert not result.error.cells_lost
    assert read(engine, 0, [expected[0]], greedy, start=4) == expected[1]


def test_after_a_fatal_error_there_is_a_new_context_and_no_further_call(engine: FailingEngine, greedy: Sampler) -> None:
    expected = generate(engine, 0, PROMPT, greedy, 3)
    engine.codes = [-3]

    results = list(engine.execute(Plan(calls=[[Piece(1, 0, PROMPT, greedy)], [Piece(2, 0, PROMPT, greedy)]])))

    assert len(results) == 1
    assert results[0].error is not None
    assert results[0].error.cells_lost
    assert generate(engine, 0, PROMPT, greedy, 3) == expected


def test_operations_on_empty_slots_do_nothing(engine: FailingEngine, greedy: Sampler) -> None:
    operate(engine, Trim(0, 0), Trim(1, 5), Copy(2, 3, 0), Copy(2, 2, 4))

    assert generate(engine, 3, PROMPT, greedy, 1)


def test_a_model_with_float_weights_loads_as_well(tmp_path: Path) -> None:
    with LlamaModel(write_tiny_model(tmp_path / "float.gguf", quantised=False)) as model:
        assert model.name == "float"
