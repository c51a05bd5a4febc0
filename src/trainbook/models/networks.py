"""The three families: GPT, BERT and T5."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from trainbook.knobs.config import Config
from trainbook.models.attention import KeyValueCache, Sight, sight_of
from trainbook.models.core import Compile, EncoderMemory, Stack, TokenEmbedder, Transformer
from trainbook.models.shape import Shape, shape_of

# GPT: the core read from left to right.


def build_gpt(config: Config, vocab_size: int) -> Transformer:
    return Transformer(shape_of(config, vocab_size, causal=True))


# BERT: the core read in both directions.


def build_bert(config: Config, vocab_size: int) -> Transformer:
    return Transformer(shape_of(config, vocab_size, causal=False))


# T5: an encoder that reads a text in both directions, and a decoder that writes another one while looking at it.


class EncoderDecoder(TokenEmbedder):
    def __init__(self, shape: Shape, max_target_length: int) -> None:
        super().__init__()
        # Both stacks have positions for the longer of the two texts.
        longest = max(shape.max_seq_length, max_target_length)
        shape = replace(shape, max_seq_length=longest, num_positions=max(shape.num_positions, longest))
        self.shape = shape
        self.token_embedding = nn.Embedding(shape.vocab_rows, shape.hidden_size)
        learned = shape.position == "learned"
        self.position_embedding = nn.Embedding(shape.num_positions, shape.hidden_size) if learned else None
        self.type_embedding = self.embedding_norm = None
        self.encoder = Stack(shape, num_layers=shape.num_hidden_layers, causal=False)
        self.decoder = Stack(shape, num_layers=shape.num_decoder_layers, causal=True, with_cross_attention=True)
        self.dropout = nn.Dropout(shape.dropout)

    def encode(self, input_ids: Tensor, document_ids: Tensor | None, positions: Tensor | None = None) -> Tensor:
        x_BLD = self.embed(input_ids, positions)
        packed = positions is not None
        return self.dropout(self.encoder.run(x_BLD, document_ids_BL=document_ids, packed=packed))

    def forward(
        self,
        input_ids: Tensor,
        decoder_input_ids: Tensor,
        *,
        document_ids: Tensor | None = None,
        positions: Tensor | None = None,
        decoder_document_ids: Tensor | None = None,
        decoder_positions: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of the decoder, one for each of its inputs."""
        packed = positions is not None
        encoded = self.encode(input_ids, document_ids, positions)
        across = sight_of(decoder_document_ids, document_ids, packed=packed, causal=False)
        x_BLD = self.decoder.run(
            self.embed(decoder_input_ids, decoder_positions),
            # A lone document on each row needs no mask: what is padded comes after all that is real.
            document_ids_BL=decoder_document_ids if packed else None,
            packed=packed,
            memory=EncoderMemory(encoded, across),
        )
        return self.dropout(x_BLD)

    def compile_around(self, compiled: Compile) -> None:
        """What lies around blocks, where these are compiled by themselves."""
        self.embed = compiled(self.embed)

    def most_tokens(self, asked: int) -> int:
        """How many tokens can be written: learned and rotary positions end somewhere."""
        return asked if self.shape.position in ("relative", "none") else min(asked, self.shape.max_seq_length)

    def remember(self, input_ids: Tensor, document_ids: Tensor | None) -> EncoderMemory:
        """For writing token by token: the input is read once, and each layer's keys and values of it are kept."""
        encoded = self.encode(input_ids, document_ids)
        seen = sight_of(None, document_ids, packed=False, causal=False) if document_ids is not None else Sight()
        kept = [block.cross_attention.keys_and_values(encoded) for block in self.decoder.blocks]  # pyright: ignore
        return EncoderMemory(encoded, seen, kept)

    def decode(self, decoder_input_ids: Tensor, memory: EncoderMemory, caches: list[KeyValueCache]) -> Tensor:
        x_BLD = self.embed(decoder_input_ids, None, caches[0].length)
        return self.decoder.run(x_BLD, caches=caches, memory=memory)


def build_t5(config: Config, vocab_size: int, max_target_length: int) -> EncoderDecoder:
    return EncoderDecoder(shape_of(config, vocab_size, causal=False, initializer="fan_in"), max_target_length)
