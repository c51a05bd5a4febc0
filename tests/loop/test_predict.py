"""Answers of untrained models: what they say does not matter, that it is what the network says does."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trainbook.data.sources.chat import PLAIN, chat_with
from trainbook.data.tokenizers import ByteTokenizer
from trainbook.errors import DataError, UserError
from trainbook.knobs import Config
from trainbook.knobs.sections.data import DataKnobs
from trainbook.knobs.sections.evaluation import EvaluationKnobs
from trainbook.knobs.sections.model import ModelKnobs
from trainbook.knobs.sections.training import TrainingKnobs
from trainbook.loop.load_task import LoadedTask
from trainbook.loop.predict import Prediction
from trainbook.loop.predictors import Input, TagJudge, windows
from trainbook.loop.prompts import conversation, prompt_text, prompt_tokens
from trainbook.precision import Precision
from trainbook.tasks import Facts, task_class
from trainbook.tasks import metrics as measures

CPU = torch.device("cpu")
NAMES = ("bad", "good", "so so")
TYPES = {"causal": "gpt", "chat": "gpt", "seq2seq": "t5", "span": "t5"}
TEXTS = ["a fine day", "no", "it rained all the day long and we stayed at home", "déjà vu", "well then"]


def restored(task: str, batch: int = 2, length: int = 16, **data: Any) -> LoadedTask:
    kind = TYPES.get(task, "bert")
    position: dict[str, Any] = {"position": "relative"} if kind == "t5" else {}
    config = Config(
        model=ModelKnobs(type=kind, num_hidden_layers=1, hidden_size=16, num_attention_heads=2, **position),
        data=DataKnobs(max_seq_length=length, **data),
        training=TrainingKnobs(task=task),
        evaluation=EvaluationKnobs(per_device_eval_batch_size=batch),
    )
    kind = task_class(config)
    tokenizer = ByteTokenizer(kind.specials)
    names = NAMES if kind.labels in ("class", "classes") or kind.records == "tagged" else ()
    facts = Facts(tokenizer.vocab_size, names, 1.0, tokenizer.special("pad") or 0, tokenizer.end_of_text)
    if task == "chat":
        facts = replace(facts, chat_template=PLAIN)
    built = kind.build(config, facts, CPU, torch.float32)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # answers that differ from text to text
        for parameter in built.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.3, generator=generator)
    return LoadedTask(built.eval(), tokenizer, config, facts, Precision(config.precision, CPU), step=0)


def written(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def predicted(model: LoadedTask, file: str, **options: Any) -> tuple[list[dict[str, Any]], dict[str, float]]:
    prediction = Prediction(model, file, CPU, **options)
    answers = list(prediction)
    return answers, prediction.metrics()


@torch.no_grad()
def logits_of(model: LoadedTask, text: str, **inputs: Any) -> torch.Tensor:
    """One text alone, without padding, as training frames it."""
    frame = type(model.task).frame(model.config, model.tokenizer)
    tokens = [*frame.prefix, *model.tokenizer.encode(text).tolist()[: frame.room], *frame.suffix]
    return model.task.logits(input_ids=torch.tensor([tokens]), **inputs)


# Labels


def test_it_is_known_whether_a_run_was_trained_on_the_file(tmp_path: Path):
    mine, other = (written(tmp_path / name, [{"text": "a"}]) for name in ("mine.jsonl", "other.jsonl"))
    model = restored("classify", source=mine)
    assert [Prediction(model, file, CPU).has_trained_on_it for file in (mine, other)] == [True, False]


def test_conversations_are_not_for_a_classifier_and_no_task_is_advised(tmp_path: Path):
    said = {"messages": [{"role": "user", "content": "hello"}]}
    with pytest.raises(DataError, match="These are conversations, which this run's model is not made for"):
        predicted(restored("classify"), written(tmp_path / "chat.jsonl", [said]))


@pytest.mark.parametrize("batch", [1, 2, 64])
def test_a_class_comes_with_its_probability_in_the_order_of_the_file(tmp_path: Path, batch: int):
    model = restored("classify", batch)
    answers, metrics = predicted(model, written(tmp_path / "new.jsonl", [{"text": text} for text in TEXTS]))
    assert [answer["text"] for answer in answers] == TEXTS and metrics == {}
    assert [answer["place"] for answer in answers] == [f"{tmp_path}/new.jsonl:{line}" for line in range(1, 6)]
    for answer in answers:
        probabilities = logits_of(model, answer["text"], chosen=torch.tensor([0])).softmax(-1)[0]
        assert answer["label"] == NAMES[int(probabilities.argmax())]
        assert answer["probability"] == pytest.approx(float(probabilities.max()), abs=1e-5)
        assert answer["top"] == pytest.approx(dict(zip(NAMES, probabilities.tolist(), strict=True)), abs=1e-5)
        assert list(answer["top"].values()) == sorted(answer["top"].values(), reverse=True)
        assert "truth" not in answer


def test_metrics_of_classes_are_those_of_an_evaluation(tmp_path: Path):
    model = restored("classify")
    labels = ["good", "bad", "bad", "so so", "good"]
    records = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]
    answers, metrics = predicted(model, written(tmp_path / "new.jsonl", records))
    logits = torch.cat([logits_of(model, text, chosen=torch.tensor([0])) for text in TEXTS])
    targets = torch.tensor([NAMES.index(label) for label in labels])
    counts = measures.class_counts(logits.argmax(-1), targets, 3)
    sums = {"cross_entropy": F.cross_entropy(logits, targets, reduction="sum"), "counts": counts}
    assert metrics == pytest.approx(model.task.metrics(sums, 5), rel=1e-5)
    assert [answer["truth"] for answer in answers] == labels


def test_records_without_a_label_are_answered_and_not_counted(tmp_path: Path):
    records: list[dict[str, Any]] = [
        {"text": TEXTS[0], "label": "good"},
        {"text": TEXTS[1]},
        {"text": TEXTS[2], "label": None},
    ]
    answers, metrics = predicted(restored("classify"), written(tmp_path / "new.jsonl", records))
    assert ["truth" in answer for answer in answers] == [True, False, False]
    assert metrics["accuracy"] in (0.0, 1.0)


def test_several_labels_are_those_above_one_half(tmp_path: Path):
    model = restored("classify_many")
    truths = [["good"], [], ["bad", "so so"], ["good", "bad"], ["bad"]]
    records = [{"text": text, "labels": names} for text, names in zip(TEXTS, truths, strict=True)]
    answers, metrics = predicted(model, written(tmp_path / "new.jsonl", records))
    correct = 0
    for answer, truth in zip(answers, truths, strict=True):
        probabilities = logits_of(model, answer["text"], chosen=torch.tensor([0])).sigmoid()[0].tolist()
        expected = [name for name, probability in zip(NAMES, probabilities, strict=True) if probability > 0.5]
        assert answer["labels"] == expected
        assert answer["truth"] == tuple(sorted(truth))
        correct += set(expected) == set(truth)
    assert metrics["accuracy"] == correct / 5


def test_a_number_is_what_the_head_says(tmp_path: Path):
    model = restored("regress")
    records = [{"text": text, "score": number} for number, text in enumerate(TEXTS)]
    answers, metrics = predicted(model, written(tmp_path / "new.jsonl", records))
    expected = [float(logits_of(model, text, chosen=torch.tensor([0]))) for text in TEXTS]
    assert [answer["value"] for answer in answers] == pytest.approx(expected, abs=1e-5)
    assert metrics["mean_squared_error"] == pytest.approx(np.mean((np.array(expected) - np.arange(5)) ** 2), rel=1e-4)
    assert metrics["pearson"] == pytest.approx(np.corrcoef(expected, np.arange(5))[0, 1], rel=1e-3)


def test_each_word_gets_a_tag_at_its_first_token(tmp_path: Path):
    model = restored("tag", length=32)
    sentences = [["we", "saw", "Ada"], ["no"], ["a", "very", "long", "sentence", "that", "goes", "far", "beyond", "it"]]
    tags = [["bad", "bad", "good"], ["so so"], ["bad"] * 9]
    records = [{"words": words, "tags": its_tags} for words, its_tags in zip(sentences, tags, strict=True)]
    answers, metrics = predicted(model, written(tmp_path / "new.jsonl", records))
    judged = 0
    for answer, words in zip(answers, sentences, strict=True):
        assert answer["words"] == tuple(words)
        starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
        for word, start in enumerate(starts):
            if start >= 30:  # 32 positions, two of them around the text
                assert answer["tags"][word] is None
                continue
            logits = logits_of(model, " ".join(words), chosen=torch.tensor([1 + start]))
            assert answer["tags"][word] == NAMES[int(logits.argmax())]
            judged += 1
    assert answers[2]["tags"][-1] is None and judged == 10
    right = sum(
        guess == tag
        for answer, true in zip(answers, tags, strict=True)
        for guess, tag in zip(answer["tags"], true, strict=True)
    )
    assert metrics["accuracy"] == pytest.approx(right / 13), "a word that was not read is not right"


def test_words_that_were_not_read_are_told_and_their_entities_missed():
    judge = TagJudge.__new__(TagJudge)
    judge.names, judge.sums, judge.device, judge.num_judged = ("B-PER", "I-PER", "O"), {}, torch.device("cpu"), 4
    judge.config = SimpleNamespace(data=SimpleNamespace(max_seq_length=8))  # pyright: ignore
    inputs = [Input("", "", words=("a", "b", "c"), truth=("B-PER", "O", "B-PER")), Input("", "", words=("d", "e"))]
    tags: list[list[str | None]] = [["B-PER", "O", None], ["O", None]]
    judge._count_unread(inputs, tags)
    judge._count_entities(inputs, tags)
    assert judge.sums["entities"].tolist() == [[1], [0], [1]]  # found, found wrongly, missed
    assert judge.sums["counts"].tolist() == [[0, 0, 0], [0, 0, 0], [1, 0, 0]] and judge.sums["unread"] == 1
    assert str(judge.remark()).startswith("2 of 5 words are beyond the 8 tokens that the model reads")


def test_words_of_a_conll_file_that_have_no_tags_are_tagged(tmp_path: Path):
    (tmp_path / "new.conll").write_text("we\nsaw\nAda\n\nno\n")
    answers, metrics = predicted(restored("tag"), str(tmp_path / "new.conll"))
    assert [answer["words"] for answer in answers] == [("we", "saw", "Ada"), ("no",)] and metrics == {}
    assert [len(answer["tags"]) for answer in answers] == [3, 1]


def test_lines_of_text_are_tagged_word_by_word(tmp_path: Path):
    (tmp_path / "new.txt").write_text("we saw  Ada\n\nno\n")
    answers, metrics = predicted(restored("tag"), str(tmp_path / "new.txt"))
    assert [answer["words"] for answer in answers] == [("we", "saw", "Ada"), ("no",)] and metrics == {}
    assert [len(answer["tags"]) for answer in answers] == [3, 1]


# Texts


@pytest.mark.parametrize("num_beams", [None, 2])
def test_an_answer_is_what_the_task_writes(tmp_path: Path, num_beams: int | None):
    model = restored("seq2seq", max_target_length=6)
    answers, metrics = predicted(
        model, written(tmp_path / "new.jsonl", [{"text": text} for text in TEXTS]), num_beams=num_beams
    )
    for answer in answers:
        tokens = [*model.tokenizer.encode(answer["text"]).tolist()[:15], model.tokenizer.end_of_text]
        task: Any = model.task
        expected = task.write({"input_ids": torch.tensor([tokens])}, max_new_tokens=6, num_beams=num_beams or 1)
        assert answer["output"] == model.tokenizer.decode(expected[0])
    assert metrics == {} and len({answer["output"] for answer in answers}) > 1


def test_of_several_right_answers_to_one_question_the_nearest_counts(tmp_path: Path):
    model = restored("seq2seq", max_target_length=6)
    (said,), _ = predicted(model, written(tmp_path / "one.jsonl", [{"input": "a fine day"}]))
    records = [
        {"input": "a fine day", "target": "something else"},
        {"input": "no", "target": "zzz zzz zzz"},
        {"input": "a fine day", "target": said["output"]},
    ]
    prediction = Prediction(model, written(tmp_path / "new.jsonl", records), CPU)
    answers, metrics = list(prediction), prediction.metrics()
    assert metrics["exact_match"] == 0.5, "two questions, one of them answered"
    assert "2 different inputs in 3 records" in str(prediction.remark())
    assert answers[0]["output"] == answers[2]["output"] == said["output"]


def test_a_text_is_as_likely_as_its_tokens(tmp_path: Path):
    model = restored("causal")
    answers, metrics = predicted(model, written(tmp_path / "new.jsonl", [{"text": text} for text in TEXTS]))
    total = count = 0.0
    for answer in answers:
        tokens = torch.tensor([*answer["text"].encode(), model.tokenizer.end_of_text])
        nats = 0.0
        for start in range(0, len(tokens) - 1, 16):  # in windows of 16 positions
            window = tokens[start : start + 17]
            with torch.no_grad():
                logits = model.task.logits(input_ids=window[None, :-1])[0]
            nats += float(F.cross_entropy(logits, window[1:], reduction="sum"))
        assert answer["targets"] == len(tokens) - 1
        assert answer["loss"] == pytest.approx(nats / (len(tokens) - 1), rel=1e-4)
        assert answer["perplexity"] == pytest.approx(math.exp(answer["loss"]))
        assert answer["bits_per_byte"] == pytest.approx(answer["loss"] / math.log(2)), "a token is a byte"
        total, count = total + nats, count + len(tokens) - 1
    assert metrics["loss"] == pytest.approx(total / count, rel=1e-4) and metrics["targets"] == count


@pytest.mark.parametrize("task", ["masked", "span"])
def test_a_text_with_parts_hidden_has_a_loss_that_no_batch_size_changes(tmp_path: Path, task: str):
    file = written(tmp_path / "new.jsonl", [{"text": text} for text in TEXTS])
    found = [predicted(restored(task, batch), file) for batch in (1, 64)]
    for one, other in zip(found[0][0], found[1][0], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4) and one["targets"] == other["targets"]
        assert "bits_per_byte" not in one
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-4)


@pytest.mark.parametrize("samples", ["windows", "documents"])
def test_windows_hold_every_token_as_a_target_once(samples: str):
    model = restored("causal", length=4, samples=samples)
    frame, end = type(model.task).frame(model.config, model.tokenizer), model.tokenizer.end_of_text
    assert [part.tolist() for part in windows(np.arange(10), frame, end)] == [
        [0, 1, 2, 3, 4],
        [4, 5, 6, 7, 8],
        [8, 9, end],
    ]
    assert [part.tolist() for part in windows(np.arange(4), frame, end)] == [[0, 1, 2, 3, end]]
    assert windows(np.arange(0), frame, end) == []


# Files


def test_each_line_of_a_text_file_is_a_record_and_blank_lines_are_none(tmp_path: Path):
    (tmp_path / "new.txt").write_text("one\n\n  \ntwo\n", encoding="utf-8")
    answers, _ = predicted(restored("classify"), str(tmp_path / "new.txt"))
    assert [(answer["text"], answer["place"]) for answer in answers] == [
        ("one", f"{tmp_path}/new.txt:1"),
        ("two", f"{tmp_path}/new.txt:4"),
    ]


def test_a_line_ends_at_its_line_feed_alone(tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_bytes("one\x0ctwo\x85three\u2028four\r\nfive\rsix\nseven".encode())
    answers, _ = predicted(restored("classify"), str(tmp_path / "new.txt"))
    assert [(answer["text"], answer["place"].rpartition(":")[2]) for answer in answers] == [
        ("one\x0ctwo\x85three\u2028four", "1"),
        ("five\rsix", "2"),
        ("seven", "3"),
    ]


def test_why_there_are_no_metrics_is_said_in_options_of_the_command(tmp_path: Path):
    records = [{"text": text, "other": "x", "more": "y"} for text in TEXTS]
    prediction = Prediction(restored("seq2seq"), written(tmp_path / "new.jsonl", records), CPU)
    assert len(list(prediction)) == 5
    assert prediction.note == (
        "no target texts to compare with, so no metrics. If the file has target texts: --label-field NAME"
    )


def test_a_record_without_text_keeps_its_place(tmp_path: Path):
    records = [{"id": "a", "text": "one"}, {"id": "b", "text": " "}, {"id": "c", "text": "two"}]
    answers, _ = predicted(restored("classify"), written(tmp_path / "new.jsonl", records))
    assert [answer["id"] for answer in answers] == ["a", "b", "c"]
    assert answers[1]["skipped"] == "no text" and "label" not in answers[1] and "label" in answers[2]


@pytest.mark.parametrize("name", ["new.csv", "new.jsonl"])
def test_unusable_records_are_skipped_and_counted_if_the_run_skips_them(tmp_path: Path, name: str):
    csv = "id,text,label\na,one,good\nb,two,\nc,three\nd,four,bad\n"
    lines = [{"id": "a", "text": "one", "label": "good"}, {"id": "b", "text": "two", "label": ""}]
    jsonl = "\n".join([*map(json.dumps, lines), "{", json.dumps({"id": "d", "text": "four", "label": "bad"})])
    (tmp_path / name).write_text(csv if name == "new.csv" else jsonl, encoding="utf-8")
    prediction = Prediction(restored("classify", bad_lines="skip"), str(tmp_path / name), CPU)
    for _ in range(2):  # counted anew each time
        answers = list(prediction)
        assert ["label" in answer for answer in answers] == [True, False, False, True]
        assert answers[1]["id"] == "b" and "'label'" in answers[1]["skipped"]
        assert [answer["place"].rpartition(name)[2] for answer in answers] == (
            [":2", ":3", ":4", ":5"] if name == "new.csv" else [":1", ":2", ":3", ":4"]
        )
        assert prediction.inputs.num_skipped == 2
    with pytest.raises(DataError, match=r"new\..*: the field 'label' .* only runs with data\.bad_lines=skip"):
        predicted(restored("classify"), str(tmp_path / name))


def test_a_class_that_the_model_lacks_is_never_skipped(tmp_path: Path):
    file = written(tmp_path / "new.jsonl", [{"text": "x", "label": "good"}, {"text": "y", "label": "goood"}])
    with pytest.raises(DataError, match=r"new\.jsonl:2: the model has no class 'goood'"):
        predicted(restored("classify", bad_lines="skip"), file)


def test_a_column_that_is_merely_there_is_not_taken_for_the_truth(tmp_path: Path):
    records = [{"text": text, "who": "Ada"} for text in TEXTS]
    prediction = Prediction(restored("classify"), written(tmp_path / "new.jsonl", records), CPU)
    assert "truth" not in next(iter(prediction)) and "--label-field" in prediction.note


def test_labels_of_minus_one_are_none(tmp_path: Path):
    records = [{"text": text, "label": -1} for text in TEXTS]
    assert predicted(restored("classify"), written(tmp_path / "new.jsonl", records))[1] == {}


def test_the_truth_is_known_by_its_values(tmp_path: Path):
    file = written(tmp_path / "new.jsonl", [{"text": text, "verdict": "good"} for text in TEXTS])
    assert "accuracy" in predicted(restored("classify"), file)[1]


def test_a_long_text_is_shown_by_its_beginning(tmp_path: Path):
    (answer,), _ = predicted(restored("classify"), written(tmp_path / "new.jsonl", [{"text": "ab" * 500}]))
    assert answer["text"] == "ab" * 100 + "…"


@pytest.mark.parametrize(
    ("records", "options", "message"),
    [
        (
            [{"text": "x", "label": "goood"}],
            {},
            r"new.jsonl:1: the model has no class 'goood'; .* Did you mean 'good'\? To predict without metrics, remove",
        ),
        ([{"text": "x"}], {"label_field": "lable"}, "has no field 'lable' .--label-field."),
        ([{"text": "x"}], {"text_field": "body"}, "has no field 'body' .--text-field."),
        ([{"left": "x", "right": "y"}], {}, "Set --text-field"),
        ([{"text": "x"}, {"other": "y"}], {}, "new.jsonl:2: has no field 'text'"),
        ([{"text": 3}], {"text_field": "text"}, "new.jsonl:1: the field 'text' must be a string"),
    ],
)
def test_a_mistake_in_the_columns_is_a_message(tmp_path: Path, records: Any, options: Any, message: str):
    with pytest.raises(DataError, match=message):
        predicted(restored("classify"), written(tmp_path / "new.jsonl", records), **options)


def test_a_file_that_is_not_there_is_a_message(tmp_path: Path):
    with pytest.raises(DataError, match="does not exist"):
        predicted(restored("classify"), str(tmp_path / "none.jsonl"))


def test_beams_are_for_models_that_write(tmp_path: Path):
    with pytest.raises(UserError, match="num-beams: only applies to models that generate text"):
        Prediction(restored("classify"), str(tmp_path / "new.txt"), CPU, num_beams=2)


# Conversations: the answer to the last question, as `generate` gives it.


def said(*turns: str) -> dict[str, Any]:
    """A system message first, where the number of turns is even; then questions and answers in turn."""
    roles = ["system", "user", "assistant", "user", "assistant"]
    return {"messages": [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a chat model is asked; its answers are in capitals."""
    prompts: list[str] = []

    def pieces(task: Any, tokenizer: Any, config: Any, messages: Any, *others: Any) -> Any:
        prompts.append(chat_with(PLAIN, tokenizer).text(messages, True))
        yield messages[-1]["content"].upper()

    monkeypatch.setattr("trainbook.loop.predictors.generate_pieces", pieces)
    return prompts


def test_a_conversation_is_answered_with_all_that_was_said_before_and_compared(tmp_path: Path, seen: list[str]):
    whole = said("Be brief.", "hello", "hi", "how are you", "HOW ARE YOU")
    open_ended = said("Be brief.", "who are you")
    answers, metrics = predicted(restored("chat"), written(tmp_path / "chat.jsonl", [whole, open_ended]))
    assert seen == [
        "System:\nBe brief.\nUser:\nhello\nAssistant:\nhi<|endoftext|>User:\nhow are you\nAssistant:\n",
        "System:\nBe brief.\nUser:\nwho are you\nAssistant:\n",
    ]
    assert (answers[0]["text"], answers[0]["output"], answers[0]["truth"]) == ("how are you", *["HOW ARE YOU"] * 2)
    assert answers[1]["output"] == "WHO ARE YOU" and "truth" not in answers[1]
    assert metrics["exact_match"] == 1.0


def test_prompts_may_lack_a_response_and_lines_are_questions(tmp_path: Path, seen: list[str]):
    records = [{"prompt": "why", "system": "Be kind."}]
    answers, metrics = predicted(restored("chat"), written(tmp_path / "open.jsonl", records))
    assert seen == ["System:\nBe kind.\nUser:\nwhy\nAssistant:\n"] and metrics == {}
    assert answers[0]["output"] == "WHY"
    (tmp_path / "lines.txt").write_text("one\n\ntwo\n")
    answers, _ = predicted(restored("chat"), str(tmp_path / "lines.txt"))
    assert [answer["output"] for answer in answers] == ["ONE", "TWO"]


def test_a_chat_model_really_writes_something(tmp_path: Path):
    answers, metrics = predicted(restored("chat", length=48), written(tmp_path / "a.jsonl", [said("", "b", "c")]))
    assert isinstance(answers[0]["output"], str) and answers[0]["truth"] == "c" and "exact_match" in metrics


def test_beams_are_not_for_a_chat_model(tmp_path: Path):
    file = written(tmp_path / "chat.jsonl", [said("", "hello", "hi")])
    with pytest.raises(UserError, match="num-beams: a chat model answers with the most likely tokens"):
        Prediction(restored("chat"), file, CPU, num_beams=2)


def test_a_system_message_is_read_before_the_prompt_and_only_by_a_chat_model():
    model = restored("chat")
    tokens = prompt_tokens(model.task, model.tokenizer, model.config, conversation("why", "Be kind."))
    assert model.tokenizer.decode(tokens) == "System:\nBe kind.\nUser:\nwhy\nAssistant:\n"
    silent = "{% for message in messages if message['role'] == 'user' %}{{ message['content'] }}{% endfor %}"
    with pytest.raises(UserError, match="leaves out a system message"):
        prompt_text(silent, model.tokenizer, conversation("why", "Be kind."))
