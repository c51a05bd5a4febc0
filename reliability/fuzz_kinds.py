"""Kinds of files that come in: a few good ones of each, how they are changed, and which readers they are fed to."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz_changes import VALUES, changed_bytes, changed_cells, changed_json, changed_lines

ROWS = [
    {"step": n, "segment": n // 8, "split": "eval" if n % 8 == 7 else "train", "time": 1e9 + n, "loss": 5 - n / 20}
    | {"learning_rate": 1e-3, "grad_norm": 1.5, "tokens": n * 100, "tokens_per_second": 1e4, "clipped": False}
    | ({"grad_norms": {"body": 1.0, "head": 0.5}} if n % 10 == 0 else {})
    for n in range(1, 16)
]
EVENTS = [
    {"step": 0, "segment": 0, "kind": "start", "time": 1e9, "train_tokens": 10_000, "facts": {"a": [1]}},
    {"step": 3, "segment": 0, "kind": "skip", "reason": "loss 9 is 7 deviations above", "evidence": {"loss": 9.0}},
    {"step": 7, "segment": 0, "kind": "checkpoint", "path": "checkpoints/step-00000007", "bytes": 10, "seconds": 0.1},
    {"step": 8, "segment": 1, "kind": "resume", "saved_in": 0, "reason": "resumed"},
    {"step": 14, "segment": 1, "kind": "rollback", "reason": "diverged", "to_step": 8},
]


JUDGED_EVERY = 8  # the doctor judges what was read in one of so many cases: it takes most of the time


class Kind:
    """A file in a folder of its own. `put` writes one that was changed, `read` feeds it to all who read such files."""

    reads = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "file"
        folder.mkdir(parents=True, exist_ok=True)

    def changed(self, random: Random) -> bytes:
        raise NotImplementedError

    def put(self, content: bytes) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_bytes(content)

    def read(self) -> None:
        raise NotImplementedError


CONFIGS = (
    b"model:\n  type: gpt\n  hidden_size: 64\n  num_hidden_layers: 2\noptimizer:\n  learning_rate: 1e-3\n"
    b"  betas: [0.9, 0.95]\ntraining:\n  max_steps: 100\n  seed: 7\nschedule: {type: cosine, warmup_steps: 10}\n",
    b"# a recipe\nbatch: &b\n  global_batch_size: 32\nlogging:\n  report_to: [tensorboard, wandb]\n"
    b"data:\n  source: 'text.txt'\n  max_seq_length: 128\nguard: {enabled: true}\n",
    b"learning_rate: 3e-4\nper_device_train_batch_size: 8\nfp16: true\nmax_steps: 3\nlr_scheduler_type: linear\n",
)


class ConfigFile(Kind):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / "config.yaml"

    def changed(self, random: Random) -> bytes:
        good = random.choice(CONFIGS)
        if random.random() < 0.5:  # a value becomes another one, of any type
            lines = good.split(b"\n")
            at = random.randrange(len(lines) - 1)
            before, colon, _ = lines[at].partition(b": ")
            value = json.dumps(random.choice(VALUES), ensure_ascii=random.random() < 0.5)
            lines[at] = (before if colon else lines[at].rstrip(b":")) + b": " + value.encode("utf-8", "surrogatepass")
            return b"\n".join(lines)
        return changed_bytes(good, random, CONFIGS)

    def read(self) -> None:
        from trainbook.knobs import explain_config, load
        from trainbook.runs.foreign.vocabulary import read_mapping

        self.reads += 1
        if self.reads % JUDGED_EVERY == 0:
            read_mapping(self.file)
        explain_config(load(self.file))


@cache
def manifest() -> dict[str, Any]:
    from dataclasses import asdict

    from trainbook.knobs import load
    from trainbook.runs.manifest import Manifest

    config = load(None, ["model.type=gpt", "training.max_steps=100", "data.source=text.txt"]).config
    found = Manifest.of_this_machine("run", recipe="gpt-tiny", config=config.model_dump(mode="json"), seed=1)
    found.start_segment(0, 0)
    found.end_segment("finished")
    found.start_segment(1, 20)
    return asdict(found)


class InRun(Kind):
    """One file of a run folder; the others are good."""

    name = ""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        run = folder / "runs" / "run"
        run.mkdir(parents=True, exist_ok=True)
        (run / "manifest.json").write_text(json.dumps(manifest()))
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        (run / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in EVENTS))
        self.run, self.file = run, run / self.name

    def read(self) -> None:
        from trainbook.doctor.diagnose import as_json, diagnose
        from trainbook.report.compare import compare
        from trainbook.runs import RunFolder
        from trainbook.runs.jsonl import dumps
        from trainbook.runs.record import open_record

        record = open_record(self.run)
        run = RunFolder.open(self.run)
        run.next_segment()
        run.is_abandoned()
        list(run.metrics("eval"))
        self.reads += 1
        if self.reads % JUDGED_EVERY:
            return
        dumps(as_json(diagnose(record)))
        if record.train:
            compare([record, replace(record, name="other", path=None)])


class ManifestFile(InRun):
    name = "manifest.json"

    def changed(self, random: Random) -> bytes:
        if random.random() < 0.2:
            return changed_bytes(json.dumps(manifest()).encode(), random)
        return changed_json(manifest(), random)

    def read(self) -> None:
        from trainbook.report.card import make_card
        from trainbook.runs import RunFolder
        from trainbook.runs.manifest import Manifest, differences
        from trainbook.runs.record import open_record

        open_record(self.run)
        run = RunFolder.open(self.run)
        differences(run.read_manifest(), Manifest(**manifest()))
        self.reads += 1
        if self.reads % JUDGED_EVERY == 0:
            make_card(run).as_text()


class MetricsFile(InRun):
    name = "metrics.jsonl"

    def changed(self, random: Random) -> bytes:
        return changed_lines(ROWS, random)


class EventsFile(InRun):
    name = "events.jsonl"

    def changed(self, random: Random) -> bytes:
        return changed_lines(EVENTS, random)


@cache
def state() -> tuple[dict[str, Any], dict[str, bytes]]:
    """state.json of a small checkpoint, and its tensors."""
    import tempfile

    import torch

    from trainbook.checkpoints import CheckpointStore

    with tempfile.TemporaryDirectory() as folder, closing(CheckpointStore(Path(folder), asynchronous=False)) as store:
        step = {0: {"exp_avg": torch.ones(2, 3), "step": 4}}
        parts = {
            "model": {"weight": torch.ones(2, 3), "bias": torch.zeros(3)},
            "optimizer": {"state": step, "groups": [{"betas": (0.9, float("nan")), "name": "a"}]},
            "loop": {
                "step": 4,
                "seen": [1, 2, 3],
                "names": ("x", None),
                "complex": torch.ones(2, dtype=torch.complex128),
            },
        }
        store.save(4, parts, metrics={"loss": 2.5})
        place = Path(folder) / "step-00000004"
        tensors = {path.name: path.read_bytes() for path in place.glob("*.safetensors")}
        return json.loads((place / "state.json").read_text()), tensors


class StateFile(Kind):
    """Sealed again after the change, as whoever made it on purpose would."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.place = folder / "checkpoints" / "step-00000004"
        self.file = self.place / "state.json"
        self.tensors = state()[1]

    def changed(self, random: Random) -> bytes:
        if random.random() < 0.2:
            return changed_bytes(json.dumps(state()[0]).encode(), random)
        return changed_json(state()[0], random)

    def put(self, content: bytes) -> None:
        super().put(content)
        self.seal({"state.json": content, **self.tensors})

    def seal(self, files: dict[str, bytes]) -> None:
        from trainbook.checkpoints import folder as sealed
        from trainbook.checkpoints.folder import FileFact

        for name, content in files.items():
            (self.place / name).write_bytes(content)
        facts = {name: FileFact(len(each), hashlib.sha256(each).hexdigest()) for name, each in files.items()}
        (self.place / "complete.json").write_bytes(sealed._marker_bytes(sealed.Marker(4, 1, facts)))

    def read(self) -> None:
        from trainbook.checkpoints import CheckpointStore

        with closing(CheckpointStore(self.place.parent, read_only=True, on_event=lambda kind, facts: None)) as store:
            found = store.load("latest")
            store.load("latest", parts=("model",))
            assert found is None or isinstance(found.state, dict)


class TensorsFile(StateFile):
    """A checkpoint's weights, and a pretrained model's."""

    def changed(self, random: Random) -> bytes:
        content = self.tensors[random.choice(sorted(self.tensors))]
        size = int.from_bytes(content[:8], "little")
        if random.random() < 0.6:
            header = changed_json(json.loads(content[8 : 8 + size]), random)
            size = len(header) if random.random() < 0.9 else random.choice((0, 1, 2**32, 2**63, len(header) - 1))
            return struct.pack("<Q", size) + header + content[8 + int.from_bytes(content[:8], "little") :]
        return changed_bytes(content, random, list(self.tensors.values()))

    def put(self, content: bytes) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        self.seal({"state.json": json.dumps(state()[0]).encode(), **self.tensors, "model.safetensors": content})
        self.model = self.folder / "model"
        self.model.mkdir(exist_ok=True)
        (self.model / "model.safetensors").write_bytes(content)

    def read(self) -> None:
        from trainbook.models.formats.folder import open_weights

        super().read()
        with open_weights(self.model) as weights:
            for name in weights.names():
                weights.shape(name)
                weights.get(name).sum()


TRAINER_STATE = {
    "best_metric": 2.5,
    "best_global_step": 8,
    "best_model_checkpoint": None,
    "epoch": 2.0,
    "eval_steps": 4,
    "global_step": 12,
    "logging_steps": 2,
    "max_steps": 12,
    "num_train_epochs": 2,
    "train_batch_size": 4,
    "total_flos": 1e9,
    "log_history": [
        {"epoch": n / 6, "grad_norm": 1.5, "learning_rate": 1e-3, "loss": 5 - n / 5, "step": n} for n in range(2, 30, 2)
    ]
    + [{"epoch": 1.0, "eval_loss": 3.0, "eval_runtime": 0.1, "step": n} for n in (4, 8, 12)]
    + [{"epoch": 2.0, "step": 12, "train_loss": 3, "train_runtime": 2.0, "train_samples_per_second": 9.0}],
}


class Log(Kind):
    def read(self) -> None:
        from trainbook.doctor.diagnose import as_json, diagnose
        from trainbook.runs.jsonl import dumps
        from trainbook.runs.record import open_record

        record = open_record(self.file)
        self.reads += 1
        if self.reads % JUDGED_EVERY == 0:
            dumps(as_json(diagnose(record)))


class TrainerState(Log):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / "trainer_state.json"

    def changed(self, random: Random) -> bytes:
        if random.random() < 0.2:
            return changed_bytes(json.dumps(TRAINER_STATE).encode(), random)
        return changed_json(TRAINER_STATE, random)


class LogTable(Log):
    ROWS = [["step", "epoch", "train/loss", "val_loss", "lr", "time", "note"]] + [
        [str(n), str(n / 10), str(5 - n / 10), "" if n % 5 else "3.0", "1e-3", str(1e9 + n), "x"] for n in range(20)
    ]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / "log.csv"

    def changed(self, random: Random) -> bytes:
        separator = random.choice(",;\t")
        content = changed_cells(self.ROWS, random, separator)
        return changed_bytes(content, random) if random.random() < 0.4 else content


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _field(number: int, value: int | float | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


class EventFile(Log):
    """TensorBoard's."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / "events.out.tfevents.1"
        self.records = [_field(1, 1e9) + _field(3, b"brain.Event:2")]
        for n in range(20):
            simple = _field(1, b"train/loss") + _varint(2 << 3 | 5) + struct.pack("<f", 5 - n / 10)
            tensor = _field(1, b"eval/loss") + _field(8, _field(1, 1) + _field(4, struct.pack("<f", 4 - n / 20)))
            tensor += _field(9, _field(1, _field(1, b"scalars")))
            self.records.append(_field(1, 1e9 + n) + _field(2, n) + _field(5, _field(1, simple) + _field(1, tensor)))
        text = _field(1, b"args/text_summary") + _field(8, _field(1, 7) + _field(8, b'{"learning_rate": 0.001}'))
        self.records.append(_field(5, _field(1, text)))

    def changed(self, random: Random) -> bytes:
        from trainbook.runs.foreign.tensorboard import _masked_crc32c

        records = list(self.records)
        for _ in range(random.choice((1, 2, 5))):
            at = random.randrange(len(records))
            records[at] = changed_bytes(records[at], random, records)
        parts = []
        for record in records:
            size = struct.pack("<Q", len(record))
            parts += [size, struct.pack("<I", _masked_crc32c(size)), record, b"\0\0\0\0"]
        content = b"".join(parts)
        return changed_bytes(content, random) if random.random() < 0.3 else content


class WandbFile(Log):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / "run-abc.wandb"
        config = _field(1, _field(1, b"learning_rate") + _field(8, b"0.001")) + _field(
            1, _field(2, b"optim") + _field(2, b"type") + _field(8, b'{"a": [1, 2]}')
        )
        self.records = [_field(17, _field(8, b"a run") + _field(4, config))]
        for n in range(20):
            items = [("loss", 5 - n / 10), ("_step", n), ("_timestamp", 1e9 + n), ("val_loss", 4.0)]
            row = b"".join(
                _field(1, _field(1, name.encode()) + _field(16, str(value).encode())) for name, value in items
            )
            self.records.append(_field(2, row + _field(2, _field(1, n))))
        self.records.append(_field(18, _field(1, 0)))

    def changed(self, random: Random) -> bytes:
        records = list(self.records)
        for _ in range(random.choice((1, 2, 5))):
            at = random.randrange(len(records))
            records[at] = changed_bytes(records[at], random, records)
        content = b":W&B\xe1\xbe\x00"
        for record in records:
            if len(content) + 7 + len(record) > 32 * 1024:
                break  # one block is enough
            content += struct.pack("<IHB", zlib.crc32(record, zlib.crc32(b"\x01")), len(record), 1) + record
        return changed_bytes(content, random) if random.random() < 0.2 else content


RECORDS = [
    {
        "text": f"number {n} of a text, with words",
        "label": "ab"[n % 2],
        "tags": ["x", "y"],
        "words": ["a", "b"],
        "n": n / 2,
    }
    | {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}], "target": "t"}
    for n in range(12)
]


WAYS = [(records, bad) for records in ("text", "labelled", "tagged", "pairs", "chat") for bad in ("error", "skip")]


class Data(Kind):
    """Read as one kind of record after the other, as training and the report on data do."""

    def read(self) -> None:
        from trainbook.data.sources import open_source
        from trainbook.data.sources.chat import open_chat
        from trainbook.data.sources.fields import FieldSpec

        records, bad_lines = WAYS[self.reads % len(WAYS)]
        self.reads += 1
        chat = open_chat("plain", True, {"kind": "byte"}) if records == "chat" else None
        wanted = FieldSpec(records=records, bad_lines=bad_lines, chat=chat)  # pyright: ignore[reportArgumentType]
        for document in open_source(str(self.file), wanted).documents():
            assert isinstance(document.text, str)


class DataTable(Data):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / "data.csv"

    def changed(self, random: Random) -> bytes:
        rows = [["text", "label", "words", "tags"]] + [
            [each["text"].replace(",", ""), each["label"], '"[""a"", ""b""]"', "x|y"] for each in RECORDS
        ]
        content = changed_cells(rows, random, random.choice(",,;\t"))
        return changed_bytes(content, random) if random.random() < 0.4 else content


class DataLines(Data):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / "data.jsonl"

    def changed(self, random: Random) -> bytes:
        return changed_lines(RECORDS, random)


class DataCompressed(Data):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / "data.jsonl.gz"

    def changed(self, random: Random) -> bytes:
        if random.random() < 0.3:
            return gzip.compress(changed_lines(RECORDS, random), mtime=0)
        lines = b"".join(json.dumps(each).encode() + b"\n" for each in RECORDS)
        return changed_bytes(gzip.compress(lines, mtime=0), random)


class DataParquet(Data):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / "data.parquet"
        self.good = [_parquet(RECORDS, compression) for compression in ("none", "snappy", "zstd")]
        features = {"label": {"_type": "ClassLabel", "names": ["a", "b"]}}
        numbered = [{"text": each["text"], "label": n % 2} for n, each in enumerate(RECORDS)]
        self.good.append(_parquet(numbered, "none", {"info": {"features": features}}))

    def changed(self, random: Random) -> bytes:
        if random.random() < 0.2:
            try:
                lines = changed_lines(RECORDS, random).decode().splitlines()
                return _parquet([json.loads(line) for line in lines], "snappy")
            except Exception:  # what cannot be written as one table
                pass
        return changed_bytes(random.choice(self.good), random, self.good)


def _parquet(rows: Sequence[Any], compression: str, about: Any = None) -> bytes:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist(list(rows))
    if about is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
    stream = io.BytesIO()
    pyarrow.parquet.write_table(table, stream, compression=compression)
    return stream.getvalue()


class TokenizerFile(Kind):
    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        super().__init__(folder)
        self.file = folder / "tokenizer.json"
        trained = Tokenizer(models.BPE())
        trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
        trained.decoder = decoders.ByteLevel()  # pyright: ignore
        trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["<|end|>"], show_progress=False)  # pyright: ignore
        trained.train_from_iterator(["a few words of a text, and a few more words"] * 3, trainer)
        self.good = [
            json.loads(trained.to_str()),
            {"trainbook": "byte", "specials": ["pad", "mask"]},
            {"trainbook": "char", "characters": ["a", "b", " "], "end_of_text": True, "specials": []},
            {"trainbook": "word", "words": ["a", "few"], "end_of_text": False},
        ]

    def changed(self, random: Random) -> bytes:
        good = random.choice([self.good[0], *self.good])
        return changed_bytes(json.dumps(good).encode(), random) if random.random() < 0.2 else changed_json(good, random)

    def read(self) -> None:
        from trainbook.data.tokenizers.files import load_tokenizer

        tokenizer = load_tokenizer(self.folder)
        ids = list(tokenizer.encode("a few words"))
        tokenizer.decode(ids)
        assert tokenizer.vocab_size >= 0
        assert tokenizer.fingerprint


MODEL = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 60,
    "n_positions": 32,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "tie_word_embeddings": True,
    "id2label": {"0": "a", "1": "b"},
    "bos_token_id": 0,
    "rope_scaling": None,
}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "vocab_size": 60,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


class ModelConfig(Kind):
    """config.json of a pretrained model."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / "pretrained" / "config.json"

    def changed(self, random: Random) -> bytes:
        good = random.choice((MODEL, LLAMA))
        return changed_bytes(json.dumps(good).encode(), random) if random.random() < 0.2 else changed_json(good, random)

    def read(self) -> None:
        from trainbook.knobs import load

        load(None, [f"model.pretrained={self.file.parent}", "data.tokenizer=byte", "training.max_steps=1"])


KINDS: dict[str, Callable[[Path], Kind]] = {
    "config.yaml": ConfigFile,
    "manifest.json": ManifestFile,
    "metrics.jsonl": MetricsFile,
    "events.jsonl": EventsFile,
    "state.json": StateFile,
    "safetensors": TensorsFile,
    "trainer_state.json": TrainerState,
    "log.csv": LogTable,
    "tensorboard": EventFile,
    "wandb": WandbFile,
    "data.csv": DataTable,
    "data.jsonl": DataLines,
    "data.jsonl.gz": DataCompressed,
    "data.parquet": DataParquet,
    "tokenizer.json": TokenizerFile,
    "config.json": ModelConfig,
}
