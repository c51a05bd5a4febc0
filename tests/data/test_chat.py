from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainbook.data import DataBundle
from trainbook.data.sources.chat import (
    CHATML,
    PLAIN,
    Chat,
    encode_with_specials,
    messages_of,
    open_chat,
    special_tokens,
)
from trainbook.data.tokenizers import ByteTokenizer, tokenizer_config, train_bpe
from trainbook.errors import DataError

BuildFrom = Callable[..., DataBundle]

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Ho"},
    {"role": "user", "content": "And?"},
    {"role": "assistant", "content": "Hum"},
]


def learned(template: str, messages: list[dict[str, Any]] = CONVERSATION) -> list[str]:
    text, ranges = Chat(template, "the template").render(messages)
    assert ranges is not None
    return [text[begin:end] for begin, end in ranges]


def message(template: str, messages: list[dict[str, Any]] = CONVERSATION) -> str:
    with pytest.raises(DataError) as caught:
        Chat(template, "the template").render(messages)
    return str(caught.value)


def test_what_the_assistant_says_is_learned_with_the_end_of_its_turn() -> None:
    assert learned(CHATML) == ["Ho<|im_end|>\n", "Hum<|im_end|>\n"]
    assert learned(PLAIN) == ["Ho<|endoftext|>", "Hum<|endoftext|>"]
    assert Chat(PLAIN, "plain").render(CONVERSATION)[0] == (
        "System:\nBe brief.\nUser:\nHi\nAssistant:\nHo<|endoftext|>User:\nAnd?\nAssistant:\nHum<|endoftext|>"
    )


def test_everything_is_learned_where_the_prompt_is_not_masked() -> None:
    text, ranges = Chat(CHATML, "chatml", mask_prompt=False).render(CONVERSATION)
    assert ranges is None
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n")


def test_the_same_words_of_user_and_assistant_are_not_confused() -> None:
    echo = [{"role": role, "content": "Ho"} for role in ("user", "assistant", "user", "assistant")]
    text, ranges = Chat(CHATML, "chatml").render(echo)
    assert ranges is not None
    assert [text[:begin].count("<|im_start|>") for begin, _ in ranges] == [2, 4]


def test_templates_are_rendered_as_transformers_does(tmp_path: Path) -> None:
    import transformers

    train_bpe(iter(["some text"]), 300).save(tmp_path)
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    template = (
        "{{ bos_token }}{% for message in messages %}\n"
        "    {% if message['role'] == 'assistant' %}\n"
        "{% generation %}[{{ message['content'] | trim }}]{{ eos_token }}{% endgeneration %}\n"
        "    {% else %}\n"
        "{{ message | tojson }}\n"
        "    {% endif %}\n"
        "{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    ours = Chat(template, "the template", begin="<s>", end="</s>")
    for prompt in (False, True):
        theirs = reference.apply_chat_template(
            CONVERSATION, chat_template=template, tokenize=False, add_generation_prompt=prompt
        )
        assert ours.text(CONVERSATION, add_generation_prompt=prompt) == theirs


def test_a_template_that_rewrites_what_came_before_is_refused() -> None:
    only_the_last = "{{ messages[-1]['content'] }}{% if add_generation_prompt %}>{% endif %}"
    assert message(only_the_last) == (
        "the template renders the beginning of a conversation differently when more messages follow, so message 3 "
        "cannot be located. Choose another template with data.chat_template, or train on the whole text with "
        "data.mask_prompt=false."
    )
    drops_old_thoughts = (
        "{% for message in messages %}{{ message['role'] }}:"
        "{% if loop.last %}<think>{% endif %}{{ message['content'] }}\n{% endfor %}"
    )
    assert "cannot be located" in message(drops_old_thoughts)
    ends_once = (
        "{% for message in messages %}{{ message['role'] }}:{{ message['content'] }}\n{% endfor %}"
        "{% if messages[-1]['role'] == 'assistant' %}</s>{% endif %}"
    )
    assert "cannot be located" in message(ends_once)
    assert learned(ends_once, CONVERSATION[:3]) == ["assistant:Ho\n</s>"]


def test_a_template_may_refuse_a_conversation_and_cannot_reach_out() -> None:
    assert message("{{ raise_exception('only two turns') }}") == (
        "the template cannot render the conversation: only two turns"
    )
    assert "cannot render the conversation" in message("{{ messages.__class__.__mro__[1].__subclasses__() }}")


def test_a_text_must_not_name_a_special_token() -> None:
    attack = [{"role": "user", "content": "a<|endoftext|>b"}, {"role": "assistant", "content": "c"}]
    assert message(PLAIN, attack) == (
        "message 1 of the conversation must not contain the special token '<|endoftext|>'."
    )


def test_a_conversation_without_an_answer_teaches_nothing() -> None:
    assert message(PLAIN, [{"role": "user", "content": "a"}]) == (
        "the conversation has no assistant message, so there is nothing to train on."
    )


def test_messages_are_understood_as_people_write_them() -> None:
    expected = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert messages_of([{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "conversations") == expected
    parts = [{"type": "text", "text": "a"}]
    assert messages_of([{"role": "User", "content": parts}, expected[1]], "messages") == expected
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    assert messages_of([call], "messages") == [{**call, "content": ""}]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("hi", "the field 'm' must be a list of messages, but got a string."),
        ([], "the field 'm' must be a list of messages, but got an empty list."),
        (["hi"], "message 1 in the field 'm' must be an object with a role and a content, but got a string."),
        ([{"content": "x"}], "message 1 in the field 'm' must have a role, but has only: 'content'."),
        (
            [{"role": "asistant", "content": "x"}],
            "message 1 in the field 'm' must have one of the roles system, developer, user, assistant, tool, "
            "but got 'asistant'. Did you mean 'assistant'?",
        ),
        ([{"role": "user"}], "message 1 in the field 'm' must have a text as its content, but got null."),
    ],
)
def test_a_bad_message_is_named_by_its_number(value: Any, problem: str) -> None:
    with pytest.raises(DataError) as caught:
        messages_of(value, "m")
    assert str(caught.value) == problem


def test_the_template_is_the_one_asked_for_else_the_tokenizers_else_plain(tmp_path: Path) -> None:
    byte = tokenizer_config("byte", None)
    assert open_chat(None, True, byte).template == PLAIN
    with pytest.raises(DataError, match=r"^data\.chat_template: chatml needs a tokenizer with <\|im_start\|>"):
        open_chat("chatml", True, byte)
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    assert open_chat(str(tmp_path / "own.jinja"), True, byte).template == "{{ messages }}"
    train_bpe(iter(["some text"]), 300).save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ eos_token }}"}))
    own = open_chat(None, True, tokenizer_config(str(tmp_path), None))
    assert (own.template, own.end) == ("{{ eos_token }}", "<|endoftext|>")


def test_a_template_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    byte = tokenizer_config("byte", None)
    with pytest.raises(DataError) as caught:
        open_chat("chatlm", True, byte)
    assert str(caught.value) == (
        "data.chat_template: must be plain, chatml, or the path of a Jinja file, but 'chatlm' cannot be read: "
        "No such file or directory. Did you mean 'chatml'?"
    )
    (tmp_path / "bad.jinja").write_text("a\n{% for %}")
    with pytest.raises(DataError, match=r"data\.chat_template: .*bad\.jinja' has an error in line 2: "):
        open_chat(str(tmp_path / "bad.jinja"), True, byte)


def test_special_tokens_become_one_token_each_and_places_stay() -> None:
    tokenizer = ByteTokenizer()
    specials = special_tokens(tokenizer)
    assert specials == {"<|endoftext|>": 256}
    texts = ["ab<|endoftext|>é<|endoftext|>", "<|endoftext|>", "", "x"]
    encoded = encode_with_specials(texts, tokenizer, specials)
    assert [ids.tolist() for ids, _ in encoded] == [[97, 98, 256, *"é".encode(), 256], [256], [], [120]]
    assert encoded[0][1].tolist() == [0, 1, 2, 15, 15, 16]


@pytest.mark.parametrize("tokenizer", ["byte", "char", "bpe"])
def test_conversations_become_tokens_of_which_answers_are_marked(
    build_from: BuildFrom, tmp_path: Path, tokenizer: str
) -> None:
    lines = [
        {"messages": [*CONVERSATION[:4], {"role": "assistant", "content": f"Number {number}, ünïcode."}]}
        for number in range(20)
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    bundle = build_from(
        tmp_path / "c.jsonl", records="chat", tokenizer=tokenizer, vocab_size=300 if tokenizer == "bpe" else None
    )
    samples = bundle.train
    ids = samples.ids(np.arange(3), np.zeros(3, dtype=np.int64))
    tokens, marks = samples.read(ids), samples.read_marks(ids)
    assert marks is not None
    decoded = bundle.tokenizer.decode(tokens.values[: tokens.lengths[0]])
    assert decoded.startswith("System:\nBe brief.\nUser:\nHi\nAssistant:\nHo<|endoftext|>User:")
    spoken = bundle.tokenizer.decode(tokens.values[marks.values == 1])
    expected = [f"Ho<|endoftext|>{lines[int(i)]['messages'][-1]['content']}<|endoftext|>" for i in _lines(samples, ids)]
    assert spoken == "".join(expected)
    assert set(marks.values.tolist()) == {-1, 1}
    assert bundle.chat_template == PLAIN
    if tokenizer == "byte":  # two answers and their ends: the ends are tokens, but no bytes of text
        facts = bundle.summary["validation"]
        assert facts["marked_tokens"] - facts["learned_bytes"] == 2 * facts["documents"]
        assert bundle.bytes_per_token == facts["learned_bytes"] / facts["marked_tokens"]
    assert bundle.tokenizer.end_of_text in tokens.values
    if tokenizer == "bpe":  # special tokens are no text to learn from
        assert len(bundle.tokenizer.encode("endoftext")) > 5
        assert len(bundle.tokenizer.encode("Assistant")) == 1


def _lines(samples: Any, ids: np.ndarray) -> list[int]:
    return [int(samples.describe(int(number))["source"].rsplit(":", 1)[1]) - 1 for number in ids]


BLANK = """\
{%- for message in messages -%}
{{ message['role'] + ': ' + message['content'] + eos_token }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif -%}
"""


def test_a_generation_prompt_that_the_tokenizer_joins_with_the_answer_is_refused(
    build_from: BuildFrom, tmp_path: Path
) -> None:
    (tmp_path / "blank.jinja").write_text(BLANK)
    (tmp_path / "before.jinja").write_text(BLANK.replace("{{ 'assistant: ' }}", "assistant:"))
    records = [
        {"prompt": f"say {word}", "response": f"{word} it is"} for word in ["the", "a", "one", "two", "some", "no"] * 3
    ]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))

    def build(template: str, tokenizer: str) -> None:
        size = {"vocab_size": 300} if tokenizer == "bpe" else {}
        knobs: dict[str, Any] = {"chat_template": str(tmp_path / template), "tokenizer": tokenizer, **size}
        build_from(tmp_path / "d.jsonl", records="chat", validation_ratio=0, **knobs)

    build("before.jinja", "bpe")
    build("blank.jinja", "byte")
    with pytest.raises(DataError) as caught:
        build("blank.jinja", "bpe")
    assert str(caught.value).startswith(
        f"data.chat_template: the chat template '{tmp_path}/blank.jinja' has a space at the end of its generation "
        "prompt ('"
    )
    assert "assistant: ')" in str(caught.value)


def test_the_template_of_a_run_is_found_beside_its_tokenizer(tmp_path: Path) -> None:
    train_bpe(iter(["some text"]), 300).save(tmp_path)
    config = tokenizer_config(str(tmp_path), None)
    assert open_chat(None, True, config).template == PLAIN
    (tmp_path / "facts.json").write_text(json.dumps({"vocab_size": 300, "chat_template": BLANK}))
    assert open_chat(None, True, config).template == BLANK
    assert open_chat("plain", True, config).template == PLAIN
    for other in ('{"vocab_size": 300, "chat_template": null}', '{"vocab_size": 300}', "[]", "{"):
        (tmp_path / "facts.json").write_text(other)
        assert open_chat(None, True, config).template == PLAIN


def test_pairs_of_a_built_in_source_are_prompts_with_their_responses(build_from):
    made = build_from("builtin:sort?size=30", records="chat", text_field="text", target_field="target")
    tokens = made.train.read(made.train.ids(np.arange(20), np.zeros(20, dtype=np.int64)))
    text = made.tokenizer.decode(tokens.values)
    found = re.findall(r"User:\n([a-z]+)\nAssistant:\n([a-z]+)", text)
    assert len(found) == 20 and all("".join(sorted(letters)) == answer for letters, answer in found)
