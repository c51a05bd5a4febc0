"""Speech and text: CTC, scheduled sampling, an LSTM with carried states, a tagger with a CRF, reviews, translation,
preferences, masked words."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from guard.char_gpt import VOCABULARY, text
from guard.door import Door
from guard.family import Apart, family, measured, run_steps
from guard.fresh.data import shuffled_epochs
from guard.own_runs import fit

functional = nn.functional


class Recogniser(nn.Module):
    def __init__(self, features: int, symbols: int) -> None:
        super().__init__()
        self.cell, self.out = nn.GRU(features, 32, batch_first=True, bidirectional=True), nn.Linear(64, symbols + 1)

    def forward(self, frames: Tensor) -> Tensor:
        return self.out(self.cell(frames)[0]).log_softmax(2)


@family("CTC")
def spoken_digits(seed: int, door: Door) -> float:
    """Each of three to five digits lasts two or three frames. CTC first learns to say nothing, and then to listen."""
    sounds = Apart(seed).normal(6, 8)
    model = Recogniser(8, 6)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def loss_at(apart: Apart, count: int) -> Tensor:
        digits, lengths = apart.integers(6, count, 5), 3 + apart.integers(3, count)
        lasting = 2 + apart.integers(2, count, 5)
        ends = lasting.cumsum(1)
        frame = torch.arange(15).expand(count, 15)
        spoken = (frame[:, :, None] >= ends[:, None, :]).sum(2).clamp(max=4)
        frames = sounds[digits.gather(1, spoken)] + 0.5 * apart.normal(count, 15, 8)
        heard = ends.gather(1, lengths[:, None] - 1)[:, 0]
        said = model(frames).transpose(0, 1)
        return functional.ctc_loss(said, digits + 1, heard, lengths, zero_infinity=True)

    draws = Apart(20_000 + seed)
    run_steps(door, 250, model, optimizer, lambda step: loss_at(draws, 8), clip=5.0)
    return measured(model, lambda: loss_at(Apart(10_000 + seed), 400))


@family("scheduled sampling")
def reversal_with_scheduled_sampling(seed: int, door: Door) -> float:
    """An encoder and a decoder reverse five letters. The decoder is fed its own answers more and more often."""
    embed, out = nn.Embedding(11, 16), nn.Linear(48, 10)
    encoder, decoder = nn.GRU(16, 48, batch_first=True), nn.GRUCell(16, 48)
    model = nn.ModuleList([embed, out, encoder, decoder])
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def loss_at(letters: Tensor, fed: float) -> Tensor:
        wanted, hidden = letters.flip(1), encoder(embed(letters))[1][0]
        before, losses = torch.full((len(letters),), 10), []
        for place in range(5):
            hidden = decoder(embed(before), hidden)
            logits = out(hidden)
            losses.append(functional.cross_entropy(logits, wanted[:, place]))
            own = torch.rand(len(letters)) >= fed
            before = torch.where(own, logits.argmax(1), wanted[:, place])
        return torch.stack(losses).mean()

    run_steps(
        *(door, 300, model, optimizer),
        lambda step: loss_at(torch.randint(10, (32, 5)), max(0.0, 1 - step / 250)),
        clip=1.0,
    )
    letters = Apart(10_000 + seed).integers(10, 500, 5)
    return measured(model, lambda: loss_at(letters, 0.0))


@family("carried state")
def lstm_with_carried_states(seed: int, door: Door) -> float:
    """A text model on twelve streams of a text, 16 characters an update, plain SGD from 4 down. The state is carried
    from one update to the next, and a stream begins anew at each epoch."""
    stream = text(slice(0, 12 * 1000)).view(12, -1)
    embed, cell, out = nn.Embedding(VOCABULARY, 24), nn.LSTM(24, 48, batch_first=True), nn.Linear(48, VOCABULARY)
    model = nn.ModuleList([embed, cell, out])
    optimizer = torch.optim.SGD(model.parameters(), 4.0)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.996)
    carried: dict[str, Any] = {"state": None}

    def loss_of(step: int) -> Tensor:
        begin = step % 62 * 16
        if begin == 0:
            carried["state"] = None
        hidden, state = cell(embed(stream[:, begin : begin + 16]), carried["state"])
        carried["state"] = tuple(each.detach() for each in state)
        return functional.cross_entropy(out(hidden).flatten(0, 1), stream[:, begin + 1 : begin + 17].flatten())

    run_steps(door, 434, model, optimizer, loss_of, schedule=schedule, clip=0.5)
    held = text(slice(14_000, 16_001))
    return measured(model, lambda: functional.cross_entropy(out(cell(embed(held[None, :-1]))[0])[0], held[1:]))


class Tagger(nn.Module):
    """A bidirectional GRU under a chain of tags."""

    def __init__(self, words: int, tags: int) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(words, 16), nn.GRU(16, 16, batch_first=True, bidirectional=True)
        self.out, self.chain = nn.Linear(32, tags), nn.Parameter(torch.zeros(tags, tags))

    def forward(self, words: Tensor, tags: Tensor) -> Tensor:
        """The negative log-likelihood of a sentence: of all its tags together."""
        scores = self.out(self.cell(self.embed(words[None]))[0][0])
        path = scores.gather(1, tags[:, None]).sum() + self.chain[tags[:-1], tags[1:]].sum()
        total = scores[0]
        for each in scores[1:]:
            total = (total[:, None] + self.chain).logsumexp(0) + each
        return total.logsumexp(0) - path


@family("sentence by sentence")
def tagger_with_a_crf(seed: int, door: Door) -> float:
    """A sentence of 3 to 16 words an update, its loss not divided by its length: the longest cost most."""
    apart = Apart(seed)
    after = (2 * apart.normal(4, 4)).softmax(1)
    spoken = (2.5 * apart.normal(4, 60)).softmax(1)
    model = Tagger(60, 4)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3, weight_decay=1e-5)

    def sentence(generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        tags = [int(torch.randint(4, (), generator=generator))]
        for _ in range(2 + int(torch.randint(14, (), generator=generator))):
            tags.append(int(torch.multinomial(after[tags[-1]], 1, generator=generator)))
        found = torch.tensor(tags)
        return torch.multinomial(spoken[found], 1, generator=generator)[:, 0], found

    run_steps(door, 350, model, optimizer, lambda step: model(*sentence()))
    generator = Apart(10_000 + seed).generator
    held = [sentence(generator) for _ in range(100)]
    return measured(model, lambda: torch.stack([model(*each) for each in held]).mean())


@family("bags of words")
def reviews_in_bags(seed: int, door: Door) -> float:
    """Reviews of 3 to 40 words as means of embeddings, five epochs, plain SGD at 5, clipped at 0.1."""
    apart = Apart(seed)
    mood = apart.normal(200) * (apart.uniform(200) < 0.4)
    words, lengths = apart.integers(200, 1600, 40), 3 + apart.integers(38, 1600)
    there = (torch.arange(40) < lengths[:, None]).float()
    tone = (mood[words] * there).sum(1)
    label = (tone + 0.3 * apart.normal(1600) > 0).long()
    bag, out = nn.EmbeddingBag(200, 16, mode="sum"), nn.Linear(16, 2)
    nn.init.uniform_(bag.weight, -0.5, 0.5)
    model = nn.ModuleList([bag, out])
    optimizer = torch.optim.SGD(model.parameters(), 5.0)
    schedule = lr_scheduler.StepLR(optimizer, 150, 0.5)
    order = shuffled_epochs(1200, 8)

    def loss_at(rows: Tensor) -> Tensor:
        weights = there[rows] / lengths[rows, None]
        return functional.cross_entropy(out(bag(words[rows], per_sample_weights=weights)), label[rows])

    run_steps(door, 750, model, optimizer, lambda step: loss_at(next(order)), schedule=schedule, clip=0.1)
    return measured(model, lambda: loss_at(torch.arange(1200, 1600)))


class Translator(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words + 1, width)
        self.places = nn.Parameter(0.1 * torch.randn(8, width))
        self.body = nn.Transformer(width, 4, 1, 1, 2 * width, dropout=0.1, batch_first=True)
        self.out = nn.Linear(width, words)

    def forward(self, said: Tensor, before: Tensor) -> Tensor:
        ahead = nn.Transformer.generate_square_subsequent_mask(before.shape[1])
        places = self.places[: said.shape[1]]
        return self.out(self.body(self.source(said) + places, self.target(before) + places, tgt_mask=ahead))


@family("translation")
def translation_with_smoothed_labels(seed: int, door: Door) -> float:
    """A post-norm transformer swaps words and translates them; warm-up and inverse square root, smoothed labels."""
    lexicon = torch.randperm(10, generator=Apart(seed).generator)
    model = Translator(10, 32)
    optimizer = torch.optim.Adam(model.parameters(), 4e-3, betas=(0.9, 0.98), eps=1e-9)
    schedule = lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 60, (60 / (step + 1)) ** 0.5))

    def loss_at(said: Tensor, smoothing: float) -> Tensor:
        wanted = lexicon[said.view(len(said), -1, 2).flip(2).flatten(1)]
        before = torch.cat([torch.full((len(said), 1), 10), wanted[:, :-1]], 1)
        logits = model(said, before)
        return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), label_smoothing=smoothing)

    def loss_of(step: int) -> Tensor:
        length = 2 * int(torch.randint(1, 4, ()))  # sentences of one length are batched together
        return loss_at(torch.randint(10, (96 // length, length)), 0.1)

    run_steps(door, 260, model, optimizer, loss_of, schedule=schedule)
    said = Apart(10_000 + seed).integers(10, 300, 6)
    return measured(model, lambda: loss_at(said, 0.0))


@family("preferences")
def direct_preferences(seed: int, door: Door) -> float:
    """DPO on pairs collected before: a small language model learns which of two continuations is liked, and is held to
    what it was at the beginning."""
    apart = Apart(seed)
    chain, liked = (1.5 * apart.normal(12, 12)).softmax(1), apart.normal(12)
    embed, cell, out = nn.Embedding(12, 16), nn.GRU(16, 32, batch_first=True), nn.Linear(32, 12)
    model = nn.ModuleList([embed, cell, out])

    def continued(first: Tensor) -> Tensor:
        words = [first]
        for _ in range(7):
            words.append(torch.multinomial(chain[words[-1]], 1, generator=apart.generator)[:, 0])
        return torch.stack(words, 1)

    def likelihood(words: Tensor) -> Tensor:
        logits = out(cell(embed(words[:, :-1]))[0])
        return -functional.cross_entropy(logits.transpose(1, 2), words[:, 1:], reduction="none").sum(1)

    before = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(80):  # the model to begin with
        before.zero_grad()
        (-likelihood(continued(torch.randint(12, (32,)))).mean()).backward()
        before.step()
    first = apart.integers(12, 1600)
    one, other = continued(first), continued(first)
    is_better = apart.uniform(1600) < (2 * (liked[one].sum(1) - liked[other].sum(1))).sigmoid()
    chosen, rejected = (torch.where(flag[:, None], one, other) for flag in (is_better, ~is_better))
    with torch.no_grad():
        advance = likelihood(chosen) - likelihood(rejected)
    optimizer = torch.optim.RMSprop(model.parameters(), 5e-4)
    schedule = lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 30))
    order = shuffled_epochs(1200, 8)

    def loss_at(rows: Tensor) -> Tensor:
        gain = likelihood(chosen[rows]) - likelihood(rejected[rows]) - advance[rows]
        return -functional.logsigmoid(0.3 * gain).mean()

    run_steps(door, 300, model, optimizer, lambda step: loss_at(next(order)), schedule=schedule, clip=10.0)
    return measured(model, lambda: loss_at(torch.arange(1200, 1600)))


@family("masked words")
def masked_words_with_accumulation(seed: int, door: Door) -> float:
    """A sixth of the words is hidden; two micro-batches of 8 are accumulated, each divided by what it hides."""
    follows = Apart(seed).integers(16, 16, 2)
    embed, places, out = nn.Embedding(17, 32), nn.Parameter(0.02 * torch.randn(12, 32)), nn.Linear(32, 16)
    body = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True, activation="gelu")
    model = nn.ModuleList([embed, nn.ParameterList([places]), body, out])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.01)
    schedule = lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=250, pct_start=0.1)

    def sentences(count: int) -> Tensor:
        words = [torch.randint(16, (count,))]
        for _ in range(11):
            words.append(follows[words[-1], (torch.rand(count) < 0.2).long()])
        return torch.stack(words, 1)

    def loss_at(words: Tensor) -> Tensor:
        hidden = torch.rand(words.shape) < 1 / 6
        hidden[0, 0] = True  # one at least
        logits = out(body(embed(words.masked_fill(hidden, 16)) + places))
        return functional.cross_entropy(logits[hidden], words[hidden])

    policy = door("loss", model, optimizer, schedule, clip=1.0)
    for _ in range(250):
        optimizer.zero_grad()
        losses = [loss_at(sentences(8)) for _ in range(2)]
        for each in losses:
            (each / 2).backward()
        if policy.step(torch.stack(losses).mean(), model.parameters()):
            optimizer.step()
            schedule.step()
    return measured(model, lambda: loss_at(sentences(500)))


@family("fit")
def fit_intents(seed: int, door: Door) -> float:
    """`trainbook.fit` on short commands and what they mean, batches of 16."""
    apart = Apart(seed)
    chances = (2 * apart.normal(8, 120)).softmax(1)
    intent = apart.integers(8, 2400)
    words = torch.multinomial(chances[intent], 6, generator=apart.generator)
    data = list(zip(words[:1600].split(16), intent[:1600].split(16), strict=True))
    model = nn.Sequential(nn.Embedding(120, 16), nn.Flatten(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 8))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    return fit(
        *(seed, door, model, data, loss),
        lambda: measured(model, lambda: loss(model, (words[1600:], intent[1600:]))),
        **{"training.max_steps": 250, "optimizer.learning_rate": 3e-3},
    )
