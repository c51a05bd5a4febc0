"""Any auto-model of transformers, from its folder or the hub, in the same loop as the built-in ones.

Its parts are what its config.json says, dropout among them. Its loss is the one that transformers computes itself.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from trainbook.bounded import json_text
from trainbook.data import Tokenizer
from trainbook.data.samples.frame import Frame
from trainbook.data.tokenizers.around import template
from trainbook.errors import MissingExtra, UserError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import max_target_length
from trainbook.knobs.hub import find_weights
from trainbook.tasks.causal import CausalTask, ChatTask
from trainbook.tasks.labels import Classify, ClassifyMany, LabelTask, Regress, Tag
from trainbook.tasks.layout import StepBatch, to_device
from trainbook.tasks.masked import MaskedTask
from trainbook.tasks.seq2seq import Seq2SeqTask
from trainbook.tasks.task import Facts, evaluating
from trainbook.tasks.wrapped import Wrapped, Writing

# What transformers may raise over a folder that is not what it seems.
FAILURES = (OSError, ValueError, KeyError, ImportError, RuntimeError, AttributeError, TypeError)
GENERATION = "generation_config.json"
SHARED = "shared.json"  # which names mean one parameter: a config.json does not always say so


class HuggingFace(Wrapped):
    """Mixed with an objective; `auto` is the class of transformers that has the head for it."""

    network: Any
    auto: str
    problem_type: str | None = None  # of a head over labels
    takes: frozenset[str]  # arguments of its forward pass
    fresh: frozenset[str]  # parameters that the folder had no values for, such as a new head

    @classmethod
    def build(cls, config: Config, facts: Facts, device: torch.device, dtype: torch.dtype) -> Self:
        name = config.model.pretrained
        assert name is not None, "a law asks for it"
        task = cls.around(config, facts, nn.Identity(), f"model.pretrained: {name}")
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.training.seed)  # a new head has the same first values in each run of this seed
            task.network, fresh = task.load(find_weights(name), dtype)
        task.must_have_positions(config)
        task.fresh = frozenset(f"network.{parameter}" for parameter in fresh)
        return task.prepared(config, name).to(device)

    @classmethod
    def rebuild(cls, config: Config, facts: Facts, device: torch.device, dtype: torch.dtype, folder: Path) -> Self:
        """For weights that a checkpoint has: from what `save_plan` wrote, whatever became of the pretrained model."""
        task = cls.around(config, facts, nn.Identity(), str(folder))
        with quiet(), torch.random.fork_rng(devices=[]):
            try:
                plan = transformers().AutoConfig.from_pretrained(folder, trust_remote_code=False)
                auto = getattr(transformers(), cls.auto)
                task.network = auto.from_config(plan, dtype=dtype, trust_remote_code=False)
                if (folder / GENERATION).is_file():
                    task.network.generation_config = transformers().GenerationConfig.from_pretrained(folder)
                share_as(task.network, json_text.read(folder / SHARED))
            except FAILURES as error:
                raise UserError(f"{folder} cannot be read as {cls.auto}: {_first_line(error)}") from None
        task.mark_output(task.network)
        task.fresh = frozenset()
        return task.prepared(config, str(folder)).to(device)

    def save_plan(self, folder: Path) -> None:
        """What the network is built from, without its weights."""
        with quiet():
            self.network.config.save_pretrained(folder)
            if self.network.can_generate():
                self.network.generation_config.save_pretrained(folder)
        (folder / SHARED).write_text(json.dumps(shared_parameters(self.network)), encoding="utf-8")

    def prepared(self, config: Config, name: str) -> Self:
        self.takes = frozenset(inspect.signature(self.network.forward).parameters)
        for path, part in self.network.named_modules():
            if path.endswith(".c_attn") and type(part).__name__ == "Conv1D":  # of GPT-2: queries, keys and values
                part.column_parts = [part.nx] * (part.nf // part.nx)
        if config.memory.gradient_checkpointing != "off":
            _recompute(self.network, name)
        return self

    def load(self, folder: Path, dtype: torch.dtype) -> tuple[nn.Module, set[str]]:
        auto = getattr(transformers(), self.auto)
        self.must_have_a_head(auto, folder)
        try:
            network, report = auto.from_pretrained(
                folder,
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                trust_remote_code=False,
                **self.head_options(),
            )
        except FAILURES as error:
            raise UserError(f"{self.origin} cannot be loaded as {self.auto}: {_first_line(error)}") from None
        fresh = {str(name) for name in report["missing_keys"]}
        fresh |= {str(entry[0] if isinstance(entry, tuple) else entry) for entry in report["mismatched_keys"]}
        self.must_be_pretrained(network, fresh)
        fresh |= self.renew_a_head_of_other_labels(network, folder)
        self.must_have_the_vocabulary(network)
        self.know_padding(network)
        self.mark_output(network)
        return network, fresh

    def head_options(self) -> dict[str, Any]:
        return {}

    def must_have_a_head(self, auto: Any, folder: Path) -> None:
        """Of some architectures transformers has no model for a task."""
        try:
            plan = transformers().AutoConfig.from_pretrained(folder, trust_remote_code=False)
        except FAILURES as error:
            raise UserError(f"{self.origin} cannot be loaded as {self.auto}: {_first_line(error)}") from None
        if type(plan) not in auto._model_mapping:
            task = next(name for name, each in TASKS.items() if isinstance(self, each))
            raise UserError(
                f"{self.origin}: transformers has no head for training.task={task} on a {plan.model_type} model: "
                f"{self.auto} does not support it. Choose another task or another model."
            )

    def must_be_pretrained(self, network: Any, fresh: set[str]) -> None:
        """A head may be new, also a pooler below it; anything else would be a random model that nobody asked for."""
        prefix = network.base_model_prefix + "."
        lost = sorted(name for name in fresh if name.startswith(prefix) and "pool" not in name)
        if lost:
            raise UserError(
                f"{self.origin} lacks weights that its config.json requires: "
                f"{', '.join(lost[:3])}{f' and {len(lost) - 3} more' if len(lost) > 3 else ''}."
            )

    def renew_a_head_of_other_labels(self, network: Any, folder: Path) -> set[str]:
        return set()

    def must_have_the_vocabulary(self, network: Any) -> None:
        rows = network.get_input_embeddings().weight.shape[0]
        if self.facts.vocab_size > rows:
            raise UserError(
                f"{self.origin} has embeddings for {rows} tokens, but the tokenizer has {self.facts.vocab_size}, so "
                "it belongs to other weights. Omit data.tokenizer to use the model's own tokenizer."
            )

    def must_have_positions(self, config: Config) -> None:
        """Beyond a table of learned positions there is nothing to look up; other kinds of positions go on for ever."""
        for name, part in self.network.named_modules():
            last = name.rpartition(".")[2]
            if not isinstance(part, nn.Embedding) or not ("position" in last or last == "wpe"):
                continue
            unused = 0 if part.padding_idx is None else part.padding_idx + 1  # as in RoBERTa
            rows = part.num_embeddings - getattr(part, "offset", unused)
            knob = "data.max_target_length" if ".decoder." in name else "data.max_seq_length"
            length = max_target_length(config) if ".decoder." in name else config.data.max_seq_length
            if length > rows:
                raise UserError(
                    f"{knob}: is {length}, but {self.origin} has learned positions for {rows} tokens. "
                    f"Set {knob}={rows} or less."
                )

    def know_padding(self, network: Any) -> None:
        """Some heads over labels read at the last token that is not padding."""
        if network.config.pad_token_id is None or isinstance(self, LabelTask):
            network.config.pad_token_id = self.facts.pad

    def mark_output(self, network: Any) -> None:
        """Optimizers treat the matrix to the vocabulary or the labels by itself."""
        head = network.get_output_embeddings()
        if head is not None:
            head.is_output = True

    def call(self, inputs: dict[str, Any]) -> Any:
        if "use_cache" in self.takes:
            inputs.setdefault("use_cache", False)
        return self.network(**inputs)

    def save(self, folder: Path) -> None:
        """In the format of transformers: any program that reads it can."""
        with quiet():
            self.network.save_pretrained(folder)

    # Writing, with the keys and values of what was read kept.

    def step(self, tokens_N: Tensor, state: Writing) -> Tensor:
        if "past_key_values" not in self.takes:
            return super().step(tokens_N, state)
        before = state.written.shape[1]
        state.written = torch.cat([state.written, tokens_N[:, None]], dim=1)
        unread = state.written[:, before:] if state.cache is not None else state.written
        if not state.read and (state.cache is None or state.cache.get_seq_length() >= self.limit):
            # The context is full: the newer half of it is read again.
            kept = self.limit if state.cache is None else max(1, self.limit // 2)
            unread, state.cache = state.written[:, -kept:], None
        inputs: dict[str, Any] = {"use_cache": True, "past_key_values": state.cache}
        if state.read:
            read = dict(state.read)
            mask = self.attention_mask(read["input_ids"], read.get("document_ids"))
            start = self.decoder_inputs(unread) if before == 0 else unread
            inputs |= {"attention_mask": mask, "decoder_input_ids": start, "encoder_outputs": self.encoded(state, mask)}
        else:
            inputs["input_ids"] = unread
        answer = self.network(**inputs)
        state.cache = answer.past_key_values
        return answer.logits[:, -1, : self.facts.vocab_size]

    def encoded(self, state: Writing, mask: Tensor | None) -> Any:
        if "hidden" not in state.read:
            encoder = self.network.get_encoder()
            state.read["hidden"] = encoder(input_ids=state.read["input_ids"], attention_mask=mask)[0]
        return (state.read["hidden"],)

    def reorder(self, state: Writing, index_M: Tensor) -> Writing:
        if state.cache is not None:
            state.cache.reorder_cache(index_M)
        return super().reorder(state, index_M)

    @property
    def limit(self) -> int:
        return min(self.context, getattr(self.network.config, "max_position_embeddings", None) or self.context)


class HuggingFaceCausal(HuggingFace, CausalTask):
    auto = "AutoModelForCausalLM"


class HuggingFaceChat(HuggingFace, ChatTask):
    auto = "AutoModelForCausalLM"


class HuggingFaceMasked(HuggingFace, MaskedTask):
    auto = "AutoModelForMaskedLM"
    specials = ("pad", "mask")

    @classmethod
    def frame(cls, config: Config, tokenizer: Tokenizer) -> Frame:
        return text_frame(config, tokenizer)


class HuggingFaceSeq2Seq(HuggingFace, Seq2SeqTask):
    auto = "AutoModelForSeq2SeqLM"

    @classmethod
    def frame(cls, config: Config, tokenizer: Tokenizer) -> Frame:
        prefix, suffix = template(tokenizer)
        return Frame(
            config.data.max_seq_length,
            prefix=prefix,
            suffix=suffix,
            target_prefix=prefix,
            target_suffix=suffix,
            max_target_positions=max_target_length(config),
        )

    def decoder_inputs(self, decoder_input_ids: Tensor) -> Tensor:
        """Behind the token that this model's decoder starts with, which is not always the padding token."""
        first = self.network.config.decoder_start_token_id
        if first is None or first == self.facts.pad:
            return decoder_input_ids
        begin = torch.full_like(decoder_input_ids[:, :1], first)
        return torch.cat([begin, decoder_input_ids[:, 1:]], dim=1)


class HuggingFaceLabels(HuggingFace, LabelTask):
    auto = "AutoModelForSequenceClassification"
    specials = ("pad",)

    @classmethod
    def frame(cls, config: Config, tokenizer: Tokenizer) -> Frame:
        return text_frame(config, tokenizer)

    def names(self) -> dict[int, str]:
        return dict(enumerate(self.facts.label_names)) or {0: "LABEL_0"}

    def head_options(self) -> dict[str, Any]:
        names = self.names()
        return {
            "num_labels": len(names),
            "id2label": names,
            "label2id": {label: number for number, label in names.items()},
            "problem_type": self.problem_type,
        }

    def renew_a_head_of_other_labels(self, network: Any, folder: Path) -> set[str]:
        """A head that was trained for other labels, or for these in another order, is no start for them."""
        before = transformers().AutoConfig.from_pretrained(folder, trust_remote_code=False).id2label
        if before == self.names():
            return set()
        head = [(name, part) for name, part in network.named_modules() if not _is_in_body(name, network)]
        renewed: set[str] = set()
        for name, part in head:
            for own, parameter in part.named_parameters(recurse=False):
                renewed.add(f"{name}.{own}" if name else own)
                parameter._is_hf_initialized = False
            part._is_hf_initialized = False
            network._init_weights(part)
        return renewed

    def mark_output(self, network: Any) -> None:
        linears = [
            part
            for name, part in network.named_modules()
            if isinstance(part, nn.Linear) and not _is_in_body(name, network)
        ]
        if linears:
            linears[-1].is_output = True  # pyright: ignore[reportArgumentType]


class HuggingFaceSequence(HuggingFaceLabels):
    """One answer for a whole text."""

    def must_fit_frame(self, frame: Frame) -> None:
        """The heads of T5, BART and their like read at the end token, which every text must have as often."""
        config = self.network.config
        if not config.is_encoder_decoder:
            return
        end = config.eos_token_id
        what = f"{self.origin}: the classification head of {config.model_type} reads at the end token ({end})"
        if end not in (*frame.prefix, *frame.suffix):
            raise UserError(
                f"{what}, but the tokenizer puts {_named([*frame.prefix, *frame.suffix])} around a text. Give its "
                "tokenizer.json a post_processor that adds the end token (TemplateProcessing of the tokenizers "
                "package), or take an encoder such as BERT."
            )
        if end == self.facts.pad:
            raise UserError(
                f"{what}, which is the padding token too. Name another pad_token in the tokenizer_config.json beside "
                "the tokenizer."
            )


class HuggingFaceClassify(HuggingFaceSequence, Classify):
    problem_type = "single_label_classification"


class HuggingFaceClassifyMany(HuggingFaceSequence, ClassifyMany):
    problem_type = "multi_label_classification"


class HuggingFaceRegress(HuggingFaceSequence, Regress):
    problem_type = "regression"

    @property
    def began_at(self) -> tuple[float, float]:
        return self.facts.target_mean, self.facts.target_scale

    @torch.no_grad()
    def load(self, folder: Path, dtype: torch.dtype) -> tuple[nn.Module, set[str]]:
        """A new head begins at the mean of the training targets, with differences of their size. One without a bias
        does so when it is shown what it reads (`begin_at_mean`)."""
        network, fresh = super().load(folder, dtype)
        is_new = False
        for name, part in network.named_modules():
            if getattr(part, "is_output", False) and f"{name}.weight" in fresh:
                is_new = True
                part.weight.mul_(self.facts.target_scale)  # pyright: ignore
                if part.bias is not None:
                    nn.init.constant_(part.bias, self.facts.target_mean)  # pyright: ignore[reportArgumentType]
        if not is_new:
            self.keep_target_scale()
        return network, fresh

    def begin_at_mean(self, batches: Iterable[StepBatch]) -> None:
        """Turn a new head without a bias towards the mean of what it reads, so that its answers begin near the mean of
        the targets. The hidden states of a pretrained model have much in common."""
        heads = [
            part
            for name, part in self.network.named_modules()
            if getattr(part, "is_output", False) and f"network.{name}.weight" in self.fresh and part.bias is None
        ]
        if not heads or self.facts.target_mean == 0.0 or not heads[0].weight.requires_grad:
            return
        weight = heads[0].weight
        total, rows = torch.zeros_like(weight, dtype=torch.float32), 0
        with evaluating(self):
            for entries in (each for batch in batches for each in batch.micro_batches):
                inputs = {name: tensor for name, tensor in entries.items() if name != "targets"}
                # An answer is the product of the weights and what the head reads, which is therefore its gradient.
                answers = self.logits(**to_device(inputs, weight.device))
                total += torch.autograd.grad(answers.sum(), weight)[0].float()
                rows += len(answers)
        read = total / max(1, rows)
        if float(read.square().sum()) > 0:
            with torch.no_grad():
                weight.add_((self.facts.target_mean / read.square().sum() * read).to(weight.dtype))


class HuggingFaceTag(HuggingFaceLabels, Tag):
    auto = "AutoModelForTokenClassification"


TASKS: dict[str, type[HuggingFace]] = {
    "causal": HuggingFaceCausal,
    "chat": HuggingFaceChat,
    "masked": HuggingFaceMasked,
    "seq2seq": HuggingFaceSeq2Seq,
    "classify": HuggingFaceClassify,
    "classify_many": HuggingFaceClassifyMany,
    "regress": HuggingFaceRegress,
    "tag": HuggingFaceTag,
}


def huggingface_task(name: str) -> type[HuggingFace]:
    return TASKS[name]


def text_frame(config: Config, tokenizer: Tokenizer) -> Frame:
    """A text between what the model's own tokenizer puts around it."""
    prefix, suffix = template(tokenizer)
    return Frame(config.data.max_seq_length, prefix=prefix, suffix=suffix)


def shared_parameters(network: nn.Module) -> list[list[str]]:
    """Names of one and the same parameter, such as an embedding that is the output matrix as well."""
    names: dict[int, list[str]] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def share_as(network: nn.Module, groups: list[list[str]]) -> None:
    """Part what is not shared there. Weights decide that when they are loaded: some T5 have two matrices, and a
    config.json that speaks of one."""
    parted: dict[str, nn.Parameter] = {}
    for together in shared_parameters(network):
        for name in together[1:]:
            group = next((group for group in groups if name in group), [name])
            if together[0] in group:
                continue
            owner, _, own = name.rpartition(".")
            part = network.get_submodule(owner)
            parameter = parted.setdefault(group[0], nn.Parameter(getattr(part, own).detach().clone()))
            setattr(part, own, parameter)


def transformers() -> Any:
    try:
        import transformers as package
    except ImportError:
        raise MissingExtra("model.type=hf", "transformers", "hf") from None
    return package


@contextmanager
def quiet() -> Iterator[None]:
    """Without progress bars and reports on what is new: the run says itself what matters."""
    logging = transformers().utils.logging
    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    if "trust_remote_code" in str(error):
        return (
            "it brings Python code of its own, which Trainbook never runs. Use a model that transformers has itself, "
            "or write one as a module of your own and name it as model.type=package.module:Name."
        )
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _recompute(network: Any, name: str) -> None:
    try:
        network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    except ValueError:
        raise UserError(
            f"memory.gradient_checkpointing: transformers cannot recompute the blocks of {name}. Set it to off."
        ) from None


def _named(ids: list[int]) -> str:
    return f"only {', '.join(map(str, ids))}" if ids else "nothing"


def _is_in_body(name: str, network: Any) -> bool:
    prefix = network.base_model_prefix
    return name == prefix or name.startswith(f"{prefix}.")
