"""How a job may ask for its tokens to be chosen, and the types of which all jobs' fields are made. No I/O, any thread.

Defaults are llama-server's.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
#: llama.cpp reads 0xFFFFFFFF as "choose at random", so a seed that is to be reproduced stays below it.
MAX_SEED = 0xFFFF_FFFE
#: What fits a C int, and a timer.
MAX_INT, MAX_SECONDS = 0x7FFF_FFFF, 10_000_000.0

Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
Count = Annotated[int, Field(ge=0, le=MAX_INT)]
Seconds = Annotated[float, Field(gt=0.0, le=MAX_SECONDS)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class Strict(BaseModel):
    """Part of a job: nothing is converted, and an unknown field is refused."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class SamplingOptions(Strict):
    """How the next token is chosen among those that the model proposes."""

    temperature: float = Field(default=0.8, ge=0.0, le=100.0)
    """How far to stray from the likeliest token; 0 always takes it."""
    top_p: Probability = 0.95
    """Choose among the likeliest tokens that together have this probability; 1 is off."""
    top_k: Count = 40
    """Choose among so many of the likeliest tokens; 0 is off."""
    min_p: Probability = 0.05
    """Leave out tokens that are less likely than this share of the likeliest; 0 is off."""
    typical_p: Probability = 1.0
    """Choose among tokens about as surprising as is to be expected, of this probability together; 1 is off."""
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    """Makes the choices repeatable; without it, one is made from the job's id and told in the result."""
    repeat_penalty: float = Field(default=1.0, gt=0.0, le=10.0)
    """Makes tokens that were there lately less likely, by this factor; 1 is off."""
    repeat_last_n: int = Field(default=64, ge=0, le=65_536)
    """How many of the last tokens the repeat, presence and frequency penalties look at; 0 switches them off."""
    presence_penalty: Penalty = 0.0
    """Subtracted from the scores of tokens that were there lately."""
    frequency_penalty: Penalty = 0.0
    """Subtracted from a token's score for each time that it was there lately."""
    dry_multiplier: float = Field(default=0.0, ge=0.0, le=100.0)
    """Strength of DRY, a penalty on repeating whole sequences; 0 is off."""
    dry_base: float = Field(default=1.75, ge=1.0, le=100.0)
    """How fast DRY's penalty grows with the length of what is repeated."""
    dry_allowed_length: Count = 2
    """Sequences up to this length are repeated without DRY's penalty."""
    dry_penalty_last_n: int = Field(default=-1, ge=-1, le=MAX_INT)
    """How many of the last tokens DRY looks at; -1 is all, 0 switches it off."""
    dry_sequence_breakers: Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] = Field(
        default_factory=lambda: ["\n", ":", '"', "*"]
    )
    """Texts over which DRY does not look back."""
    xtc_probability: Probability = 0.0
    """How often XTC leaves out the likeliest tokens; 0 is off."""
    xtc_threshold: Probability = 0.1
    """How likely a token must be for XTC to leave it out; the least likely of these stays."""
    mirostat: Literal[0, 1, 2] = 0
    """1 or 2: Mirostat of this version, in place of all of these but temperature, seed and logit_bias; 0 is off."""
    mirostat_tau: float = Field(default=5.0, ge=0.0, le=100.0)
    """The surprise that Mirostat aims at."""
    mirostat_eta: float = Field(default=0.1, gt=0.0, le=10.0)
    """How fast Mirostat adapts."""
    logit_bias: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict, max_length=1024
    )
    """Token id, as a decimal string as in OpenAI's API, to the value that is added to its logit."""
