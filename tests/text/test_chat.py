from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioinfer.errors import InvalidRequest, UnsupportedModel
from aioinfer.text.chat import ChatTemplate, validate_messages
from tests.text import templates

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

USER = {"role": "user", "content": "Hi  there\n"}
ASSISTANT = {"role": "assistant", "content": " <think>\nhm\n</think>\n\nHello & <b>wélcome</b> "}
SYSTEM = {"role": "system", "content": " Be terse. "}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"city": "Köln", "n": 1}}}],
}
RESULT = {"role": "tool", "content": '{"ok": true}', "name": "f"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "Gives the <weather>.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CONVERSATIONS = [
    [USER],
    [SYSTEM, USER],
    [USER, ASSISTANT, USER],
    [SYSTEM, USER, ASSISTANT, USER, ASSISTANT],
    [USER, CALL, RESULT],
    [USER, CALL, RESULT, RESULT, ASSISTANT, USER],
    [ASSISTANT, USER],
    [SYSTEM],
    [USER, USER],
]


def template(source: str, **options: Any) -> ChatTemplate:
    return ChatTemplate(source, special_tokens={"bos_token": "<s>", "eos_token": "</s>"}, **options)


@pytest.mark.parametrize("name", templates.ALL)
@pytest.mark.parametrize("conversation", range(len(CONVERSATIONS)))
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["", "tools"])
def test_renders_what_transformers_renders(
    hf_smollm: PreTrainedTokenizerFast, name: str, conversation: int, tools: list[Any] | None
) -> None:
    """The same text, or the same refusal."""
    source: str = templates.ALL[name]
    messages: Any = CONVERSATIONS[conversation]
    variants: list[dict[str, Any]] = [
        {},
        {"add_generation_prompt": False},
        {"enable_thinking": False, "date_string": "now"},
    ]
    special_tokens = {key: str(token) for key, token in hf_smollm.special_tokens_map.items()}
    ours = ChatTemplate(source, special_tokens=special_tokens)
    for options in variants:
        theirs_options: dict[str, Any] = {"add_generation_prompt": True, **options}
        try:
            expected = hf_smollm.apply_chat_template(
                messages, tools=tools, chat_template=source, tokenize=False, **theirs_options
            )
        except Exception as error:
            with pytest.raises(InvalidRequest) as caught:
                ours.render(messages, tools=tools, **options)
            assert str(error) in str(caught.value)
            assert caught.value.param == "messages"
        else:
            assert ours.render(messages, tools=tools, **options) == expected


def test_b63_the_templates_own_words_reach_the_client() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        template(templates.MISTRAL).render([USER, USER])
    assert caught.value.param == "messages"
    with pytest.raises(InvalidRequest, match=r"^System role not supported$"):
        template("{{ raise_exception('System role not supported') }}").render([SYSTEM])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for m in messages %}\n{{ m.content }", "line 2"),
        ("{% if %}", "line 1"),
        ("{{ 'a' | wordwrap }}", "wordwrap"),
        ("{{ 'a' | nonsense }}", "nonsense"),
        ("{% include 'other' %}{% endif %}", "endif"),
        ("{{ " + "(" * 10_000 + ")" * 10_000 + " }}", "compile"),
    ],
)
def test_b63_a_template_that_does_not_compile_is_refused_at_once(source: str, words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        template(source)


NESTED_LISTS = (
    "{% set ns = namespace(l=['ha', 'ha']) %}"
    "{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}"
)
A_LIST = "{% set l = range(100000) | list %}"
A_LOT = "{% set a = 'a' * 100000 %}"
LINES = "{% set lines = 'a\n' * 10000 %}"


@pytest.mark.parametrize(
    "source",
    [
        # for ever, as far as anybody can tell
        A_LIST + "{% for a in l %}{% for b in l %}{% for c in l %}{% endfor %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        A_LIST + "{% set x %}{% for a in l %}{% for b in l %}.{% endfor %}{% endfor %}{% endset %}",
        # a gigabyte, or far more
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{{ 'a'.encode() * 1000000000 }}",
        "{% set ns = namespace(a='ab') %}{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
        "{% set ns = namespace(a='ab') %}{% for i in range(60) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}some output{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ 'ab' if n == 0 else f(n - 1) * 2 }}{% endmacro %}{{ f(60) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d'.encode() % 1 }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 1000000000) }}",
        "{{ ('{0}' * 100000).format('a' * 100000) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ '1'.zfill(1000000000) }}",
        A_LOT + "{{ a.replace('a', a) }}",
        A_LOT + "{{ a.replace('', a) }}",
        A_LOT + "{{ a | replace('a', a) }}",
        A_LOT + "{{ a.join(range(100000) | map('string')) }}",
        A_LOT + "{{ range(100000) | join(a) }}",
        A_LOT + "{{ ([a] * 100000) | join }}",
        LINES + "{{ lines | indent(1000000000) }}",
        LINES + "{{ lines | indent('a' * 1000) }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        A_LIST + "{{ ([l] * 10000) | sum(start=[]) }}",
        "{{ 10 ** 1000000000 }}",
        "{% set ns = namespace(a=10) %}{% for i in range(60) %}{% set ns.a = ns.a * ns.a %}{% endfor %}",
        NESTED_LISTS + "{{ ns.l }}",
        NESTED_LISTS + "{{ ns.l | tojson }}",
        NESTED_LISTS + "{{ ns.l | string }}",
        NESTED_LISTS + "{% set x = ns.l ~ '' %}",
        NESTED_LISTS + "{% set x = '%s' % ns.l %}",
    ],
)
def test_b63_a_template_without_bounds_is_stopped(source: str) -> None:
    with pytest.raises(InvalidRequest, match="the chat template was stopped") as caught:
        template(source, max_cpu_s=0.3).render([USER])
    assert caught.value.code == "template_limit"
    assert caught.value.param == "messages"


def test_a_stopped_template_leaves_the_thread_as_it_was() -> None:
    with pytest.raises(InvalidRequest, match="CPU time"):
        template("{% for i in range(99999) %}{% endfor %}", max_cpu_s=0).render([USER])
    assert template("{% for i in range(999) %}.{% endfor %}").render([USER]) == "." * 999


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ 'a'.expandtabs(9) }}",
        "{{ missing.attribute }}",
        "{{ 'a' + 1 }}",
        "{{ 1 / 0 }}",
        "{{ range(1000000000) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'other' %}",
    ],
)
def test_what_a_template_cannot_do_is_the_requests_error(source: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot render these messages"):
        template(source).render([USER])


def test_the_sandbox_gives_no_way_to_internals() -> None:
    assert (
        template("{{ '' | attr('__class__') }}|{{ lipsum }}{{ cycler }}{{ self._x }}").render([USER]) == "|"
    )


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}]
    message = {"role": "user", "content": parts}
    assert template("{{ messages[0].content }}").render([message]) == "Hi there"
    assert message["content"] is parts


def test_null_values_are_not_there_for_the_template() -> None:
    source = "{{ 'content' in messages[1] }} {{ messages[1].content is defined }}"
    assert template(source).render([USER, CALL]) == "False False"


def test_messages_are_not_changed_and_other_keys_reach_the_template() -> None:
    message = {"role": "user", "content": "x", "name": "Ann"}
    assert template("{{ messages[0].name }}{% set messages = [] %}").render([message]) == "Ann"
    assert message == {"role": "user", "content": "x", "name": "Ann"}


def test_strftime_now() -> None:
    year = template("{{ strftime_now('%Y') }}").render([USER])
    assert year.isdigit() and len(year) == 4


def test_a_lone_surrogate_from_the_template_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        template("{{ messages[0].name }}").render([{**USER, "name": "\ud800"}])


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("Hello", "messages"),
        ({"role": "user", "content": "x"}, "messages"),
        (["Hello"], "messages[0]"),
        ([USER, None], "messages[1]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "", "content": "x"}], "messages[0].role"),
        ([{"role": 1, "content": "x"}], "messages[0].role"),
        ([{"role": "\ud800", "content": "x"}], "messages[0].role"),
        ([USER, {"role": "user"}], "messages[1].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text", "text": "x"}}], "messages[0].content"),
        ([USER, USER, {"role": "user", "content": "\udfff"}], "messages[2].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "\udfff"}],
                }
            ],
            "messages[0].content[1].text",
        ),
    ],
)
def test_what_is_no_conversation_is_refused(messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        validate_messages(messages)
    assert caught.value.param == param
    assert param in str(caught.value)
    with pytest.raises(InvalidRequest):
        template(templates.CHATML).render(messages)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "user", "developer", "tool"]), "content": st.text()}
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_text_goes_through_as_it_is(messages: list[dict[str, str]]) -> None:
    source = "{% for m in messages %}{{ m.role ~ ':' + m.content }}\n{% endfor %}"
    assert template(source).render(messages) == "".join(
        f"{message['role']}:{message['content']}\n" for message in messages
    )


def test_one_template_in_many_threads() -> None:
    chat = template(templates.QWEN)
    conversations = [[{"role": "user", "content": f"number {n}"}] for n in range(200)]
    expected = [chat.render(messages) for messages in conversations]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(chat.render, conversations)) == expected
