"""Do all engines find the same translations? Lines whose scores are nearly tied, by the same rules.

A model with random weights whose embedding has pairs of almost equal rows translates the lines on
TensorFlow, JAX, PyTorch, CTranslate2 and as a SavedModel, in float32, with
`length_penalty="mean"` and `stopping="first_beams"`. Where a text differs from the first engine's,
the first engine scores both: in a near tie, the scores differ by less than 1e-4.

    python benchmarks/one_path.py --lines 1000
    python benchmarks/one_path.py --run RUN --source SOURCE --end-bias -1 --beam-size 1

With `--run`, the model is that of a run with a bias of the tokens that end a sentence.
"""

import json
import os
import pathlib
import random
import sys
import tempfile
from typing import Annotated, Any

import typer
from json_process import JSONProcess

ENGINES = {  # name -> backend, folder
    "Keras on TensorFlow": ("tensorflow", "model"),
    "Keras on JAX": ("jax", "model"),
    "Keras on PyTorch": ("torch", "model"),
    "CTranslate2": ("tensorflow", "ct2"),
    "SavedModel": ("tensorflow", "served"),
}
RULES: dict[str, Any] = {
    "length_penalty": "mean",
    "stopping": "first_beams",
    "alpha": 1.0,
    "extra_length": 4,
}
TIE = 1e-4


def make(folder: pathlib.Path) -> None:
    """Writes the model, its tokenizer, and both exports."""
    import keras
    import numpy as np

    import keras_transformer as kt

    text = [text for pair in kt.number_names("train", 2000) for text in pair]
    tokenizer = kt.Tokenizer.train_on_lines(text, 400, folder / "tokenizer.json")
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2, "hidden_dim": 64, "num_heads": 4}
    model = kt.Transformer(kt.TransformerConfig.tiny(tokenizer.vocabulary_size, **sizes))
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(1)
    for weight in model.weights:
        weight.assign(weight + 0.2 * rng.standard_normal(weight.shape))
    embedding = keras.ops.convert_to_numpy(model.encoder.embedding.embeddings).copy()
    first = 4  # behind the special tokens: an end is no tie with a word
    twins = embedding[first + 1 :: 2]
    twins[:] = embedding[first::2][: len(twins)] * (1 + 1e-6)
    model.encoder.embedding.embeddings.assign(embedding)
    write(folder, kt.Translator(model, tokenizer, **RULES), RULES)


def make_of_run(folder: pathlib.Path, run: pathlib.Path, bias: float, beam_size: int) -> None:
    """Writes the same of a run's model with a bias."""
    import keras_transformer as kt

    # CTranslate2 shares the probability of suppressed tokens among the others.
    settings = RULES | {"beam_size": beam_size, "suppressed_tokens": ()}
    translator = kt.load_run(run, dtype="float32", **settings)
    model = kt.with_end_bias(translator.model, bias, translator.target_tokenizer)
    translator = kt.Translator(model, *translator.tokenizers, **translator.all_settings)
    (folder / "run").symlink_to(run.resolve())
    write(folder, translator, settings)


def write(folder: pathlib.Path, translator: Any, settings: dict[str, Any]) -> None:
    """Writes the model of a translator, its settings, and both exports."""
    import keras_transformer as kt

    (folder / "settings.json").write_text(json.dumps(settings))
    translator.model.save(folder / "model.keras")
    kt.export_saved_model(translator, folder / "served")
    kt.export_ctranslate2(translator, folder / "ct2")


def load(folder: pathlib.Path, name: str) -> Any:
    """Returns the translator of an engine."""
    import keras_transformer as kt

    if name == "model":
        settings, file = json.loads((folder / "settings.json").read_text()), folder / "model.keras"
        if (folder / "run").exists():
            return kt.load_run(folder / "run", file, dtype="float32", **settings)
        tokenizer = kt.Tokenizer.load(folder / "tokenizer.json")
        return kt.Translator(kt.load_model(file), tokenizer, **settings)
    return kt.load_translator(folder / name)


def answer(folder: pathlib.Path, name: str) -> None:
    """Answers requests on standard input: lines to translate, or lines and tokens to score."""
    translator = load(folder, name)
    ids = {token: i for i, token in enumerate(translator.target_tokenizer.vocabulary)}
    for row in sys.stdin:
        lines, tokens = json.loads(row)
        if tokens is None:
            found: list[Any] = [
                [best.text, best.tokens] for best, *_ in translator(lines, n_best=1)
            ]
        else:  # a text may have other tokens than those that a search has chosen
            rows = [[ids[token] for token in of_line] for of_line in tokens]
            found = [score_of(translator, *pair) for pair in zip(lines, rows, strict=True)]
        print(json.dumps(found), flush=True)


def score_of(translator: Any, line: str, token_ids: list[int]) -> float:
    """Returns the mean log-probability of given tokens."""
    import numpy as np

    (source,), _ = translator.pairs([line], [""])
    log_probs = translator.engine.score(source[None], np.array([token_ids], "int32"))
    return float(log_probs.mean())


def start(folder: pathlib.Path, engine: str) -> JSONProcess:
    backend, name = ENGINES[engine]
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, __file__, "--folder", str(folder), "--answer", name]
    return JSONProcess(command, engine, environment)


def compare(folder: pathlib.Path, lines: list[str]) -> bool:
    """Prints what each engine translates otherwise; returns whether those are all near ties."""
    first, *others = ENGINES
    reference = start(folder, first)
    expected = reference.ask([lines, None])
    distinct = len({text for text, _ in expected})
    print(f"{first}: {len(lines):,} lines, {distinct:,} distinct translations")
    is_right = True
    for engine in others:
        process = start(folder, engine)
        found = process.ask([lines, None])
        process.close()
        pairs = zip(lines, expected, found, strict=True)
        rows = [(line, ours[1], other[1]) for line, ours, other in pairs if ours[0] != other[0]]
        ours, theirs = (
            reference.ask([[line for line, *_ in rows], [row[side] for row in rows]])
            for side in (1, 2)
        )
        gaps = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
        wrong = sum(gap >= TIE for gap in gaps)
        largest = max(gaps, default=0.0)
        print(f"{engine}: {len(rows):,} differ, {wrong} by {TIE:g} or more; at most {largest:.2g}")
        is_right &= not wrong
    reference.close()
    return is_right


def main(
    lines: int = 1000,
    run: pathlib.Path | None = None,
    source: pathlib.Path | None = None,
    end_bias: float = 0.0,
    beam_size: int = 4,
    folder: Annotated[pathlib.Path, typer.Option(hidden=True)] = pathlib.Path(),
    answer_: Annotated[str, typer.Option("--answer", hidden=True)] = "",
) -> None:
    """Compares the engines; exits with 1 if texts differ by more than near ties."""
    if answer_:
        answer(folder, answer_)
        return
    if (run is None) != (source is None):
        raise typer.BadParameter("--run and --source must be given together")
    with tempfile.TemporaryDirectory() as temporary:
        made = pathlib.Path(temporary)
        if run and source:
            make_of_run(made, run, end_bias, beam_size)
            texts = source.read_text("utf-8").splitlines()[:lines]
        else:
            make(made)
            texts = names(lines)
        if not compare(made, texts):
            raise typer.Exit(1)


def names(lines: int) -> list[str]:
    """Returns random lines of number names, and odd ones."""
    from keras_transformer.data.number_corpus import number_names

    rng = random.Random(1)
    words = [english for english, _ in number_names("held_out", 2 * lines)]
    texts = [" ".join(rng.sample(words, rng.choice([1, 1, 2, 3]))) for _ in range(lines - 3)]
    return [*texts, "", " ", "Ωμέγα"]


if __name__ == "__main__":
    app = typer.Typer()
    app.command()(main)
    app()
