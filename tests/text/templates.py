"""Chat templates of the shapes that models ship, written for the tests."""

# ruff: noqa: E501

from __future__ import annotations

CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nBe helpful.<|im_end|>\\n' }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

LLAMA3 = """\
{{- bos_token }}
{%- set date = date_string if date_string is defined else "26 Jul 2024" %}
{%- if messages[0].role == 'system' %}
    {%- set system_message = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " ~ date ~ "\\n\\n" ~ system_message ~ "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- elif message.role in ("tool", "ipython") %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {{- message.content if message.content is string else message.content | tojson }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
"""

QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\nYou may call one or more functions.\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" and not message.content.startswith('<tool_response>') %}
        {%- set ns.last_query = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- macro turn(role, content) -%}
<|im_start|>{{ role }}
{{ content }}<|im_end|>
{% endmacro -%}
{%- for message in messages %}
    {%- if message.role == "system" and loop.first %}{% continue %}{% endif %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content if message.content is string else '' %}
        {%- if '</think>' in content and loop.index0 <= ns.last_query %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}{% generation %}{{ content }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function if call.function else call %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{ call.name }}{{ '", "arguments": ' }}
            {%- if call.arguments is string %}{{ call.arguments }}{% else %}{{ call.arguments | tojson }}{% endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}{% endgeneration %}
    {%- elif message.role == "tool" %}
        {%- if loop.first or loop.previtem.role != "tool" %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' }}{{ message.content }}{{ '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != "tool" %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- else %}
        {{- turn(message.role, message.content) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""

KITCHEN_SINK = """\
{% set ns = namespace(count=0, seen=[]) -%}
{% for message in messages recursive %}
  {% set ns.count = ns.count + 1 %}
  {% set ns.seen = ns.seen + [message.role] %}
{{ loop.index }}/{{ loop.length }} {{ loop.cycle("a", "b") }} {{ loop.revindex }} {{ message.role | upper }}
{% else %}
nothing
{% endfor %}
{{ ns.count }} {{ ns.seen | join("+") }} {{ ns.seen | unique | list }} {{ 7 // 2 }} {{ 7 % 3 }} {{ 2 ** 10 }}
{{ messages | map(attribute="role") | join(", ") }} | {{ missing }} | {{ missing is defined }}
{{ messages | selectattr("role", "equalto", "user") | list | length }} {{ "%s-%05d" % ("x", 42) }}
{{ "{}:{:>4}".format("k", 1) }} {{ "a" * 3 }} {{ "a,b".split(",") }} {{ "abc" | replace("b", "<&>") }}
{{ {"z": "<é>", "a": [1, 2.5, none, true]} | tojson }} {{ [1] | tojson(indent=2) }} {{ dict(a=1).items() | list }}
{{ "x\\ny" | indent(2) }} {{ [1, 2, 3] | sum }} {{ [3, 1] | sort }} {{ range(3) | list }} {{ "q" ~ 1 ~ none }}
{% for key, value in {"k": "v"}.items() if value %}{{ key }}={{ value }}{% endfor %}
{% set block %}inner {{ bos_token }}{% endset %}{{ block | trim }} {{ "t".center is defined }} {{ 1.0 }} {{ (1, "a") }}
{{ messages[0] }} {{ messages[-1].content[:3] }} {{ "Aa".lower() }} {{ "a-b".replace("-", "+") }} {{ "+".join(["a", "b"]) }}
"""

ALL = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "qwen": QWEN,
    "kitchen sink": KITCHEN_SINK,
}
