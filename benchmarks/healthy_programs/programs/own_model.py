"""A GRU of one's own as the model of a Trainbook configuration: it learns Python's standard library by bytes."""

from torch import nn

import trainbook


class Recurrent(nn.Module):
    def __init__(self, config, facts) -> None:
        super().__init__()
        width = config.model.hidden_size
        self.embedding = nn.Embedding(facts.vocab_size, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, facts.vocab_size)

    def forward(self, input_ids, attention_mask=None):
        return self.head(self.gru(self.embedding(input_ids))[0])


if __name__ == "__main__":
    trainbook.train(
        "gpt-tiny",
        [
            "model.type=own_model:Recurrent",
            "model.hidden_size=96",
            "data.max_seq_length=64",
            "training.max_steps=250",
            "evaluation.eval_steps=50",
            "optimizer.learning_rate=3e-3",
        ],
        name="own-model",
    )
