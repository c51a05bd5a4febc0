"""Numbers and pictures with a class or a number to predict."""

from __future__ import annotations

import numpy as np

from strangers.data.table import Table

Draw = np.random.Generator


def blobs(rng: Draw, rows: int, dim: int, classes: int, spread: float = 1.0) -> Table:
    """Clouds of points, two to a class."""
    centres = rng.normal(size=(classes, 2, dim)) * (2.2 / dim**0.25)
    y = rng.integers(classes, size=rows)
    x = centres[y, rng.integers(2, size=rows)] + spread * rng.normal(size=(rows, dim))
    return Table(x.astype(np.float32), y.astype(np.int64))


def moons(rng: Draw, rows: int) -> Table:
    from sklearn.datasets import make_moons

    x, y = make_moons(rows, noise=0.15, random_state=int(rng.integers(1 << 30)))
    return Table(np.asarray(x, dtype=np.float32), np.asarray(y, dtype=np.int64))


def rings(rng: Draw, rows: int, classes: int) -> Table:
    """The class is how far out a point lies; further coordinates say nothing."""
    y = rng.integers(classes, size=rows)
    angle = rng.uniform(0, 2 * np.pi, rows)
    radius = 0.6 * (y + 1) + 0.08 * rng.normal(size=rows)
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle), rng.normal(size=rows)], 1)
    return Table(x.astype(np.float32), y.astype(np.int64))


def toy(name: str) -> Table:
    """A small real set that scikit-learn brings along, standardized: digits, wine, cancer or diabetes."""
    from sklearn import datasets

    load = {
        "digits": datasets.load_digits,
        "wine": datasets.load_wine,
        "cancer": datasets.load_breast_cancer,
        "diabetes": datasets.load_diabetes,
    }[name]
    x, y = load(return_X_y=True)
    x = (x - x.mean(0)) / (x.std(0) + 1e-6) if name != "digits" else x / 8 - 1
    if name == "diabetes":
        return Table(x.astype(np.float32), ((y - y.mean()) / y.std()).astype(np.float32)[:, None])
    return Table(x.astype(np.float32), y.astype(np.int64))


def digit_pictures() -> Table:
    table = toy("digits")
    return Table(table.x.reshape(-1, 1, 8, 8), table.y)


def friedman(rng: Draw, rows: int, noise: float) -> Table:
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(rows, n_features=8, noise=noise, random_state=int(rng.integers(1 << 30)))
    return Table((2 * x - 1).astype(np.float32), ((y - y.mean()) / y.std()).astype(np.float32)[:, None])


def linear_numbers(rng: Draw, rows: int, dim: int) -> Table:
    """A number that is a sum of inputs with a bend."""
    x = rng.normal(size=(rows, dim))
    weights = rng.normal(size=dim) / dim**0.5
    y = x @ weights + 0.5 * np.tanh(2 * x[:, 0]) + 0.1 * rng.normal(size=rows)
    return Table(x.astype(np.float32), y.astype(np.float32)[:, None])


def shapes(rng: Draw, rows: int, side: int, classes: int) -> Table:
    """Pictures of lines: across, down, both diagonals, a frame, a cross; somewhere, with noise."""
    y = rng.integers(classes, size=rows)
    x = 0.4 * rng.normal(size=(rows, 1, side, side))
    span = np.arange(5)
    for row, kind in enumerate(y):
        top, left = rng.integers(side - 5, size=2)
        cells = {
            0: (np.full(5, 2), span),
            1: (span, np.full(5, 2)),
            2: (span, span),
            3: (span, 4 - span),
            4: (np.concatenate([span, span, [0] * 5, [4] * 5]), np.concatenate([[0] * 5, [4] * 5, span, span])),
            5: (np.concatenate([span, np.full(5, 2)]), np.concatenate([np.full(5, 2), span])),
        }[int(kind)]
        x[row, 0, top + cells[0], left + cells[1]] += 1.5
    return Table(x.astype(np.float32), y.astype(np.int64))


def waves(rng: Draw, rows: int, length: int) -> Table:
    """The next value of a wave, from those before."""
    rate, phase = rng.uniform(0.2, 0.8, rows), rng.uniform(0, 2 * np.pi, rows)
    times = np.arange(length + 1)
    values = np.sin(rate[:, None] * times + phase[:, None]) + 0.05 * rng.normal(size=(rows, length + 1))
    return Table(values[:, :-1, None].astype(np.float32), values[:, -1:].astype(np.float32))


def ratings(rng: Draw, rows: int, people: int = 60, things: int = 60) -> Table:
    """Whom and what, as two numbers; the rating is a product of hidden traits."""
    of_people, of_things = rng.normal(size=(people, 3)), rng.normal(size=(things, 3))
    who, what = rng.integers(people, size=rows), rng.integers(things, size=rows)
    y = (of_people[who] * of_things[what]).sum(1) / 3**0.5 + 0.1 * rng.normal(size=rows)
    return Table(np.stack([who, what + people], 1).astype(np.int64), y.astype(np.float32)[:, None])


def compressed(table: Table) -> Table:
    """What an autoencoder learns: the input itself."""
    return Table(table.x, table.x.reshape(len(table), -1).copy())


def multiplied(rng: Draw, table: Table, low: float, high: float) -> Table:
    """Imbalanced: class k is kept with a share that falls from high to low."""
    classes = int(table.labels.max()) + 1
    kept = np.geomspace(high, low, classes)[table.labels]
    return table.take(np.flatnonzero(rng.random(len(table)) < kept))
