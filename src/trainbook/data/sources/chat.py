"""Conversations as text: written out by a template, with the ranges of characters that are to be learned."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from trainbook.bounded import json_text
from trainbook.bounded.files import read_text
from trainbook.bounded.yaml_text import MOST_BYTES
from trainbook.data.sources.records import Document
from trainbook.data.sources.values import is_list, kind_of, text_of
from trainbook.data.tokenizers import END_OF_TEXT, Tokenizer, load_tokenizer
from trainbook.errors import DataError
from trainbook.nearest import did_you_mean

# Turns are told apart by words alone, and a turn of the assistant ends as a text does: any tokenizer can write it. What
# the assistant says begins a line, so that no token joins it with what stands before it.
PLAIN = """\
{%- for message in messages -%}
{{ message['role'] | capitalize }}:{{ '\\n' + message['content'] }}
{%- if message['role'] == 'assistant' %}{{ eos_token }}{% else %}{{ '\\n' }}{% endif %}
{%- endfor -%}
{%- if add_generation_prompt %}Assistant:{{ '\\n' }}{% endif -%}
"""
CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""
BUILTIN_TEMPLATES = {"plain": PLAIN, "chatml": CHATML}

ROLES = ("system", "developer", "user", "assistant", "tool")
CHECKED_CONVERSATIONS = 20
FACTS_FILE = "facts.json"  # what a run keeps beside its tokenizer
OTHER_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "chatgpt": "assistant"}


@dataclass(frozen=True)
class Chat:
    """How conversations are written, and what of them is learned."""

    template: str  # Jinja
    shown: str  # where it comes from, for messages
    mask_prompt: bool = True
    begin: str = ""  # bos_token of a template
    end: str = END_OF_TEXT  # eos_token of a template
    specials: tuple[str, ...] = (END_OF_TEXT,)  # texts that become one special token

    def facts(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "shown"}

    def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[tuple[int, int], ...] | None]:
        """The text, and where the assistant speaks in it, the end of its turn included; None: all is learned."""
        self._check(messages)
        text = self.text(messages)
        if not self.mask_prompt:
            return text, None
        ranges: list[tuple[int, int]] = []
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                before = self.text(messages[:index], add_generation_prompt=True)
                through = self.text(messages[: index + 1])
                if not (through.startswith(before) and text.startswith(through)):
                    raise DataError(
                        f"{self.shown} renders the beginning of a conversation differently when more messages follow, "
                        f"so message {index + 1} cannot be located. Choose another template with data.chat_template, "
                        "or train on the whole text with data.mask_prompt=false."
                    )
                ranges.append((len(before), len(through)))
        if not ranges:
            raise DataError("the conversation has no assistant message, so there is nothing to train on.")
        return text, tuple(ranges)

    def text(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = False) -> str:
        """The conversation as the template writes it; with a generation prompt, up to where the assistant begins."""
        try:
            return _compiled(self.template).render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                bos_token=self.begin,
                eos_token=self.end,
            )
        except Exception as error:  # a template is a program: it may raise anything
            raise DataError(f"{self.shown} cannot render the conversation: {error}") from None

    def turn_end(self) -> str | None:
        """The special token that the template writes behind an answer; None where it writes no special token there."""
        question, answer = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}
        try:
            behind = self.text([question, answer]).rpartition(answer["content"])[2].lstrip()
        except DataError:  # a template may want a tool or an image
            return None
        return next((special for special in self.specials if behind.startswith(special)), None)

    def plain_parts(self, text: str) -> list[str]:
        """What lies between special tokens: all that a tokenizer has to learn."""
        return re.split("|".join(map(re.escape, self.specials)), text) if self.specials else [text]

    def _check(self, messages: Sequence[Mapping[str, Any]]) -> None:
        for number, message in enumerate(messages, start=1):
            for special in self.specials:
                if special in (message.get("content") or ""):
                    raise DataError(
                        f"message {number} of the conversation must not contain the special token '{special}'."
                    )


def open_chat(chat_template: str | None, mask_prompt: bool, tokenizer: Mapping[str, Any]) -> Chat:
    """The template that was asked for, else the tokenizer's own, else the plain one. A tokenizer's configuration says
    which strings are special."""
    loaded = load_tokenizer(tokenizer["path"]) if tokenizer["kind"] == "file" else None
    template, shown = _template(chat_template, loaded, tokenizer.get("path"))
    _check_syntax(template, shown)
    if chat_template == "chatml" and (loaded is None or "<|im_end|>" not in special_tokens(loaded)):
        raise DataError(
            "data.chat_template: chatml needs a tokenizer with <|im_start|> and <|im_end|> as tokens: as plain text "
            "they would never end an answer. Use plain, which works with any tokenizer."
        )
    if loaded is None:
        return Chat(template, shown, mask_prompt)
    return chat_with(template, loaded, shown, mask_prompt)


def chat_with(template: str, loaded: Tokenizer, shown: str = "the template", mask_prompt: bool = True) -> Chat:
    """Conversations written by a template, in the special tokens of a tokenizer."""
    specials = special_tokens(loaded)
    names = {number: name for name, number in specials.items()}
    begin, end = loaded.special("begin"), loaded.end_of_text
    return Chat(
        template,
        shown,
        mask_prompt,
        begin=names.get(begin, "") if begin is not None else "",
        end=names.get(end, "") if end is not None else "",
        specials=tuple(sorted(specials, key=len, reverse=True)),
    )


def check_prompts(documents: Iterable[Document], chat: Chat, tokenizer: Tokenizer, specials: Mapping[str, int]) -> None:
    """What a model is asked to go on from must be what it has read before an answer, token by token.

    A conversation here and there may differ, because of how its answer begins; in most of them the template is wrong.
    """
    first = list(itertools.islice((document for document in documents if document.learned), CHECKED_CONVERSATIONS))
    prompts = [document.text[: document.learned[0][0]] for document in first if document.learned]
    whole = encode_with_specials([document.text for document in first], tokenizer, specials)
    alone = encode_with_specials(prompts, tokenizer, specials)
    differ = [
        prompt
        for prompt, (ids, _), (prompt_ids, _) in zip(prompts, whole, alone, strict=True)
        if not np.array_equal(ids[: len(prompt_ids)], prompt_ids)
    ]
    if len(differ) <= len(first) // 2:
        return
    end = differ[0][-1:]
    what = "a space" if end == " " else repr(end)
    raise DataError(
        f"data.chat_template: {chat.shown} has {what} at the end of its generation prompt ({differ[0][-20:]!r}), and "
        "the tokenizer merges that with the first word of the answer: the model would be prompted with tokens that "
        "it was not trained on. End the generation prompt before it, and start the answer with it."
    )


def messages_of(value: Any, field: str) -> list[dict[str, Any]]:
    """Messages with a role and a content, whichever of the usual ways they are written in."""
    if not is_list(value) or not value:
        got = "an empty list" if is_list(value) else kind_of(value)
        raise DataError(f"the field '{field}' must be a list of messages, but got {got}.")
    return [_message(entry, field, number) for number, entry in enumerate(value, start=1)]


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Texts that stand for one token each, whatever the vocabulary has besides."""
    added = tokenizer.to_library().get_added_tokens_decoder()
    return {token.content: number for number, token in added.items() if token.special}


def encode_with_specials(
    texts: Sequence[str], tokenizer: Tokenizer, specials: Mapping[str, int]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """As `encode_with_starts`, but a special token that a text names becomes that token."""
    if not specials:
        return tokenizer.encode_with_starts(texts)
    pattern = re.compile("|".join(map(re.escape, sorted(specials, key=len, reverse=True))))
    parts: list[str] = []
    plans: list[list[tuple[int, int | None]]] = []  # of each text: where a part begins, and which special token it is
    for text in texts:
        plan: list[tuple[int, int | None]] = []
        at = 0
        for match in pattern.finditer(text):
            if match.start() > at:
                plan.append((at, None))
                parts.append(text[at : match.start()])
            plan.append((match.start(), specials[match.group()]))
            at = match.end()
        if at < len(text):
            plan.append((at, None))
            parts.append(text[at:])
        plans.append(plan)
    encoded = iter(tokenizer.encode_with_starts(parts))
    results = []
    for plan in plans:
        pieces = [(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))]
        for begin, special in plan:
            ids, starts = next(encoded) if special is None else (np.array([special]), np.array([0]))
            pieces.append((ids, starts + begin))
        results.append((np.concatenate([ids for ids, _ in pieces]), np.concatenate([starts for _, starts in pieces])))
    return results


def _template(asked: str | None, tokenizer: Tokenizer | None, path: Any = None) -> tuple[str, str]:
    if asked is None and path is not None and (kept := _kept_by_a_run(Path(path).expanduser())):
        return kept, f"the chat template of '{path}'"
    if asked is None:
        own = tokenizer.chat_template if tokenizer else None
        return (own, "the tokenizer's chat template") if own else (PLAIN, "the chat template 'plain'")
    if asked in BUILTIN_TEMPLATES:
        return BUILTIN_TEMPLATES[asked], f"the chat template '{asked}'"
    try:
        return read_text(Path(asked).expanduser(), most=MOST_BYTES), f"the chat template '{asked}'"
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(BUILTIN_TEMPLATES)
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DataError(
            f"data.chat_template: must be {known}, or the path of a Jinja file, but '{asked}' cannot be read: {reason}."
            f"{did_you_mean(asked, BUILTIN_TEMPLATES)}"
        ) from None


def _kept_by_a_run(tokenizer: Path) -> str | None:
    """The template that a run's conversations were written with, where the tokenizer is that of a run."""
    folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
    try:
        facts = json_text.read(folder / FACTS_FILE)
        found = facts["chat_template"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) and "vocab_size" in facts else None


def _message(entry: Any, field: str, number: int) -> dict[str, Any]:
    where = f"message {number} in the field '{field}'"
    if not isinstance(entry, Mapping):
        raise DataError(f"{where} must be an object with a role and a content, but got {kind_of(entry)}.")
    role, content = entry.get("role", entry.get("from")), entry.get("content", entry.get("value"))
    if not isinstance(role, str):
        raise DataError(f"{where} must have a role, but has only: {', '.join(map(repr, entry))}.")
    role = OTHER_ROLES.get(role.lower(), role.lower())
    if role not in ROLES:
        raise DataError(
            f"{where} must have one of the roles {', '.join(ROLES)}, but got '{role}'.{did_you_mean(role, ROLES)}"
        )
    if is_list(content) and all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content):
        content = "".join(part["text"] for part in content)
    others = {key: value for key, value in entry.items() if key not in ("role", "from", "content", "value") and value}
    if content is None and others:  # such as a call of a tool, which a template may know how to write
        content = ""
    if not isinstance(content, str):
        raise DataError(f"{where} must have a text as its content, but got {kind_of(content)}.")
    return {**others, "role": role, "content": text_of(content, field)}


def _check_syntax(template: str, shown: str) -> None:
    import jinja2

    try:
        _compiled(template)
    except jinja2.TemplateSyntaxError as error:
        raise DataError(f"data.chat_template: {shown} has an error in line {error.lineno}: {error.message}") from None


@lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    """In a sandbox: a template comes with a tokenizer, from whoever made it."""
    import jinja2
    import jinja2.ext
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        """A tag around what the assistant says, which some templates have for others: it changes nothing here."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = refuse
    # strftime_now is not there on purpose: the same data must give the same text on every day.
    return environment.from_string(template)
