"""Protected text in a trained run: the share of interface strings that are translated exactly.

The strings are number names that the model never saw, with placeholders, tags, addresses and emoji.
A model whose vocabulary holds symbols copies them: "lost" counts the strings in which it dropped or
doubled one, which are then cut. Without `vocabulary.protected_symbols`, all strings are cut.

    keras-transformer train number_names --run RUN --set vocabulary.protected_symbols=4 \\
        --set "data.train={number_names: train, size: 300000}" --set model.dropout=0 \\
        --set training.learning_rate=0.002 --set training.schedule=cosine \\
        --set training.epochs=20 --set training.decay_epochs=20
    python benchmarks/protected_text.py RUN
"""

import random
from collections.abc import Iterator

import typer

from keras_transformer import load_run, number_names
from keras_transformer.decoding.protected_text import NAMES
from keras_transformer.evaluation import exact_match

SPANS = (
    *("%s", "%1$d", "{name}", "{{count}}", "<b>", "</b>", "<br/>", "`ls -l`", "\U0001f600"),
    *("%(total)d", "&nbsp;"),
)
ADDRESSES = ("https://example.org/a?b=1", "me@example.org")  # they end at a space
ONE = ("{a} {x}", "{x} {a}", "{x} {a}.", "{a}: {x}", "{x}: {a}", "{a} {x} {b}", "{c}{x}{d}")
TWO = ("{x} {a} {y}", "{x} {a} {y} {b}", "{a} {x} {b} {y}", "{x} {c}{y}{d}", "{c}{x}{d} {y}")


def interface_strings(count: int, layouts: tuple[str, ...], seed: int) -> Iterator[tuple[str, str]]:
    """Yields strings and their translations, by layouts of number names x, y and protected text."""
    draw, names = random.Random(seed), number_names("held_out", 2 * count, seed)
    for pairs in zip(names[::2], names[1::2], strict=True):
        a, b = draw.sample(SPANS + ADDRESSES, 2)
        c, d = draw.sample(SPANS, 2)
        layout = draw.choice(layouts)
        source, target = (
            layout.format(x=x, y=y, a=a, b=b, c=c, d=d) for x, y in zip(*pairs, strict=True)
        )
        yield source, target


def main(run: str, strings: int = 1000, seed: int = 7) -> None:
    """Prints the exact matches of strings with one number name, and with two."""
    translator = load_run(run, protect=NAMES)
    for title, layouts in (("one number", ONE), ("two numbers", TWO)):
        sources, targets = zip(*interface_strings(strings, layouts, seed), strict=True)
        found = [best for best, *_ in translator(sources, n_best=1)]
        right = exact_match([best.text for best in found], list(targets))
        lost = sum(bool(best.protected) for best in found)
        print(f"{title:12} exact {right:6.1%}  lost {lost}", flush=True)


if __name__ == "__main__":
    typer.run(main)
