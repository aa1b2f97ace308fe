"""Chat templates as models of several families have them, with the control tokens that they write: BOS, EOS, others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """How one family of models writes a chat."""

    template: str
    control: tuple[str, ...]
    #: Whether a text begins with a space that nobody wrote.
    space_prefix: bool = False


#: Says `model` for `assistant`, puts the system's words before the user's first, trims, insists on turns.
GEMMA = Family(
    """{{ bos_token }}
{%- set ns = namespace(system='') -%}
{%- if messages[0].role == 'system' -%}
    {%- set ns.system = messages[0].content ~ '\\n\\n' -%}{%- set messages = messages[1:] -%}
{%- endif -%}
{%- for message in messages -%}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('user and assistant must take turns') }}
    {%- endif -%}
    {{ '<start_of_turn>' ~ ('model' if message.role == 'assistant' else message.role) ~ '\\n' }}
    {{- ns.system if loop.first }}{{ message.content | trim }}{{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""",
    ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
)

#: Has headers of two tokens each, trims, writes tools as JSON.
LLAMA = Family(
    """{{- bos_token }}
{%- if tools is not none %}
    {{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
    {%- for tool in tools %}{{ tool | tojson(indent=4) }}{{ '\\n' }}{% endfor %}{{ '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role in ('tool', 'ipython') %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' ~ message.content | tojson ~ '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' ~ message.content | trim ~ '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
)

#: Has brackets for marks, a space after each, and no word for the system: it goes into the last question.
MISTRAL = Family(
    """{%- set system = messages[0].content if messages[0].role == 'system' else none %}
{%- set rest = messages[1:] if system else messages %}
{{- bos_token }}
{%- for message in rest %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' ~ (system ~ '\\n\\n' if system and loop.last) ~ message.content ~ '[/INST]' }}
    {%- else %}
        {{- ' ' ~ message.content ~ eos_token }}
    {%- endif %}
{%- endfor %}""",
    ("<s>", "</s>", "[INST]", "[/INST]"),
    space_prefix=True,
)

#: Cuts the thinking out of earlier answers, gathers tools' answers in one turn, asks what texts begin and end with.
QWEN = Family(
    """{%- set ns = namespace(last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' and not (message.content.startswith('<tool_response>')
            and message.content.endswith('</tool_response>')) %}
        {%- set ns.last = messages | length - loop.index %}{% break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' %}
        {%- if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' ~ content ~ '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' ~ message.role ~ (' ' ~ message.name if message.name) ~ '\\n' ~ content ~ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|im_sep|>"),
)

FAMILIES = {"gemma": GEMMA, "llama": LLAMA, "mistral": MISTRAL, "qwen": QWEN}
