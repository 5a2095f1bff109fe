"""Chat templates render as transformers renders them."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_subgw.errors import RequestRejected
from sglang_subgw.http.openai.template import ChatTemplate
from support.http_fakes import CHATML

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": ["<x>"]}

TEMPLATES = {
    "chatml": CHATML,
    "llama": """{{- bos_token }}
{%- set date_string = date_string if date_string is defined else strftime_now("%d %b %Y") %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string }}
{{- "\\n\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- message.tool_calls[0].function | tojson }}
        {{- '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "mistral": """{{ bos_token }}{% for message in messages %}
{% if message['role'] == 'user' %}
    {{- '[INST] ' + message['content'] + ' [/INST]' -}}
{% elif message['role'] == 'assistant' %}{{ message['content'] or '' }}{{ eos_token }}
{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}""",
    "tools": """{%- if tools %}{{ tools | tojson(indent=2) }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == "tool" %}{%- continue %}{%- endif %}
    {%- if loop.index > 6 %}{%- break %}{%- endif %}
    <{{ message.role }}>
    {% generation %}{{ message.content }}{% endgeneration %}

    {%- for call in message.tool_calls or [] %}
        {{- call.function.name }}({{ call.function.arguments | tojson }})
    {%- endfor %}
{%- endfor %}
{%- set ns = namespace(found=false) %}{%- set ns.found = true %}{{ ns.found }} {{ enable_thinking | default(1) }}""",
}

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi <b>&amp;</b> \u00e9 \U0001f600"}],
    [{"role": "system", "content": " Be kind. "}, {"role": "user", "content": "Hi\n"}],
    [
        {"role": "user", "content": "What time?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "1",
                    "index": None,
                    "type": "function",
                    "function": {"name": "now", "arguments": {"zone": "\u00dcTC", "x": [1, None]}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "12:00"},
        {"role": "assistant", "content": "Noon."},
        {"role": "user", "content": "Thanks"},
    ],
]


@pytest.mark.sglang
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("chat", CHATS, ids=["unicode", "system", "tools"])
@pytest.mark.parametrize("name", list(TEMPLATES))
@pytest.mark.parametrize(
    "variables", [{}, {"enable_thinking": False, "documents": [{"title": "a", "text": "b"}]}], ids=str
)
def test_renders_as_transformers_does(name: str, chat: list[dict[str, Any]], variables: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=TEMPLATES[name], bos_token="<s>", eos_token="</s>"
    )
    template = ChatTemplate(TEMPLATES[name], dict(theirs.special_tokens_map))
    try:
        expected = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **variables)
    except Exception as error:
        with pytest.raises(RequestRejected, match=str(error)):
            template.render(chat, variables)
    else:
        assert template.render(chat, variables) == expected


def test_faults_of_templates_are_the_requests() -> None:
    for source in (
        "{{ raise_exception('no such role') }}",
        "{{ missing | tojson }}",
        "{{ messages[9].content.x }}",
        "{{ messages.append(1) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ):
        with pytest.raises(RequestRejected):
            ChatTemplate(source, SPECIAL).render(CHATS[0], {})
    with pytest.raises(RequestRejected, match="no chat template"):
        ChatTemplate(None, {}).render(CHATS[0], {})
    with pytest.raises(RequestRejected, match="can't be used"):
        ChatTemplate("{% if %}", {}).render(CHATS[0], {})


def test_a_generation_block_has_its_own_scope() -> None:
    source = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    assert ChatTemplate(source, {}).render(CHATS[0], {}) == "21"
