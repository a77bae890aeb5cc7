"""Draws the pictures of the guides into docs/pages/images: `python docs/pictures.py`.

Needs the extras `viz` and `serve`, Selenium and Chromium. Trains four small runs, in about three
minutes on two cores: the recipe of `own_text.md`, and the same with a mistake.
"""

import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import yaml
from matplotlib.figure import Figure
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

import keras_transformer as kt
from keras_transformer.runs import Recipe, Trainer

PAGES = Path(__file__).parent / "pages"
IMAGES = PAGES / "images"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
LINE = "four hundred and forty-two"
TEXT = "seven hundred and twenty-one\nforty-two"
RIGHT, HIGH, LOW, SHIFTED = "right", "rate too high", "rate too low", "lines shifted"
STYLES = {
    RIGHT: ("#0072B2", "-"),
    HIGH: ("#D55E00", "--"),
    LOW: ("#CC79A7", ":"),
    SHIFTED: ("#009E73", "-."),
}
FLAGS = """--headless --no-sandbox --disable-gpu --disable-dev-shm-usage
--force-device-scale-factor=1 --hide-scrollbars"""


def main():
    IMAGES.mkdir(exist_ok=True)
    save(draw_speed(), "speed")
    # The tokens of `plain` are shorter, so its losses are not comparable.
    rungs = [path for path in RESULTS.glob("ladder/*.json") if path.stem != "plain"]
    save(draw_validation_losses(rungs, split="validation"), "ladder")
    save(draw_validation_losses(RESULTS.glob("multi30k/seed-*.json"), split="test"), "seeds")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        recipe = yaml.safe_load(block_of_page("my.yaml"))
        write_text(folder / "text", shift=0)
        write_text(folder / "shifted", shift=1)
        runs = {
            RIGHT: train(recipe, folder / "text", folder / "right"),
            HIGH: train(with_training(recipe, learning_rate=0.1), folder / "text", folder / "high"),
            LOW: train(
                with_training(recipe, learning_rate=0.00002), folder / "text", folder / "low"
            ),
            SHIFTED: train(recipe, folder / "shifted", folder / "shifted_run"),
        }
        levels = loss_levels(runs[RIGHT], folder / "text" / "train.tsv")
        save(draw_losses(runs, levels), "losses")
        right, shifted = (kt.load_run(runs[name]) for name in (RIGHT, SHIFTED))
        save(draw_attention(right), "attention")
        save(draw_both(right, shifted), "attention_shifted")
        card = {"name": "number names", "source_language": "en", "target_language": "de"}
        kt.export_saved_model(right, folder / "served", card=card, inspect=True)
        photograph(folder / "served", IMAGES / "page.png")


def block_of_page(title):
    """Returns the block of `own_text.md` with a title."""
    text = (PAGES / "own_text.md").read_text("utf-8")
    return re.search(rf'^```\w+ title="{title}"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)[1]


def with_training(recipe, **changes):
    return recipe | {"training": recipe["training"] | changes}


def write_text(folder, shift):
    """Writes the corpora of `own_text.md`, with the targets moved by some lines."""
    folder.mkdir()
    lines = list(dict.fromkeys("\t".join(pair) for pair in kt.number_names("train", 3600)))
    random.Random(1).shuffle(lines)
    sources, targets = zip(*(line.split("\t") for line in lines), strict=True)
    targets = targets[shift:] + targets[:shift]
    lines = [f"{source}\t{target}\n" for source, target in zip(sources, targets, strict=True)]
    for name, part in (("test", lines[:200]), ("val", lines[200:400]), ("train", lines[400:])):
        (folder / f"{name}.tsv").write_text("".join(part), "utf-8")


def train(recipe, data, run):
    Trainer(Recipe.from_dict(recipe), data, run).train()
    return run


def loss_levels(run, corpus):
    """Returns the levels of `own_text.md`: the loss of a model that knows so much, by its name."""
    tokenizer = kt.load_run(run).target_tokenizer
    targets = [target for _, target in kt.read_parallel(corpus)]
    counts = Counter(token for row in tokenizer.encode(targets) for token in row)
    counts[tokenizer.end_token_id] = len(targets)
    size, smoothing = tokenizer.vocabulary_size, 0.1
    frequencies = np.array([counts[token] for token in range(size)]) / counts.total()

    def cross_entropy(probabilities):
        smoothed = (1 - smoothing) * probabilities + smoothing / size
        return -(smoothed * np.log(smoothed)).sum()

    return {
        "knows nothing: ln(V)": np.log(size),
        "knows how frequent each token is": cross_entropy(frequencies),
        "knows every next token": cross_entropy(np.eye(size)[0]),
    }


def draw_losses(runs, levels):
    figure = Figure(figsize=(7.5, 3.8), layout="constrained")
    axes = figure.subplots()
    for name, run in runs.items():
        rows = np.genfromtxt(run / "history.csv", delimiter=",", names=True)
        colour, line = STYLES[name]
        axes.plot(np.arange(len(rows)) + 1, rows["val_loss"], line, color=colour, label=name)
        print(name, np.round(rows["val_loss"], 2).tolist(), kt.load_run(run)([LINE, "six"]))
    for name, level in levels.items():
        axes.axhline(level, color="#8a8a8a", linewidth=0.8)
        axes.text(len(rows) + 0.3, level, name, va="center", fontsize=8, color="#444")
    print({name: round(float(level), 2) for name, level in levels.items()})
    axes.set(xlabel="epoch", ylabel="validation loss (nats per token)", xlim=(0.7, len(rows)))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=len(runs))
    return figure


def draw_speed():
    """Draws the tables of `speed.md` in float32: a bar for each library."""
    text = (PAGES / "speed.md").read_text("utf-8")
    tables = re.findall(r"^\| (\w+), batches.*\n\|---.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [re.findall(r"^\| (.*?) \| ([\d,]+) \|", table, re.MULTILINE) for _, table in tables]
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    heights = {"height_ratios": [len(each) for each in rows]}
    for axes, (size, _), table in zip(
        figure.subplots(len(tables), 1, gridspec_kw=heights), tables, rows, strict=True
    ):
        names, speeds = zip(
            *((name.replace("`", ""), int(n.replace(",", ""))) for name, n in table), strict=True
        )
        colours = ["#0072B2" if name == "ours" else "#b5b5b5" for name in names]
        axes.bar_label(axes.barh(names, speeds, color=colours), fmt="{:,.0f}", padding=3)
        axes.invert_yaxis()
        axes.set_title(f"{size} model: target tokens per second", loc="left", fontsize=10)
        axes.set_xticks([])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.margins(x=0.12)
    return figure


def draw_validation_losses(paths, split):
    """Draws the losses of kept runs, the best BLEU on a split first."""
    runs = {path.stem: json.loads(path.read_text("utf-8")) for path in paths}
    scores = {name: found[split]["beam 5 of last 10"] for name, found in runs.items()}
    figure = Figure(figsize=(7.5, 3.8), layout="constrained")
    axes = figure.subplots()
    for name in sorted(runs, key=scores.get, reverse=True):
        losses = runs[name]["validation_loss_of_epochs"]
        label = f"{name}: BLEU {scores[name]:.2f}"
        axes.plot(np.arange(len(losses)) + 1, losses, label=label)
    axes.set(xlabel="epoch", ylabel="validation loss (nats per token)", ylim=(2.6, 4.0))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return figure


def draw_attention(translator):
    """Draws the picture of the first screen, which is shown small."""
    figure = Figure(figsize=(5.2, 4.3), layout="constrained")
    axes = figure.subplots()
    draw_mean(axes, translator, font_size=14)
    axes.set_xlabel(LINE, fontsize=14)
    return figure


def draw_both(*translators):
    figure = Figure(figsize=(7.5, 3.4), layout="constrained")
    for axes, translator in zip(figure.subplots(1, 2), translators, strict=True):
        draw_mean(axes, translator, font_size=9)
    return figure


def draw_mean(axes, translator, font_size):
    """Draws the mean encoder-decoder attention of all heads, for `LINE`."""
    (best,) = translator(LINE, return_attention=True)
    scores = best.attention.encoder_decoder.mean(axis=(0, 1))
    axes.imshow(scores, "magma_r", vmin=0, vmax=1, aspect="auto")
    axes.set_title(best.text, fontsize=font_size)
    axes.set_xticks(range(len(best.source_tokens)), best.source_tokens, rotation=90)
    axes.set_yticks(range(len(best.tokens)), best.tokens)
    axes.tick_params(length=0, labelsize=font_size)


def save(figure, name):
    figure.savefig(IMAGES / f"{name}.png", dpi=110)


def photograph(served, path):
    """Serves a folder, translates in the page, and saves a picture of it."""
    command = ["-c", "from keras_transformer.cli import app; app()", "serve", str(served)]
    with subprocess.Popen(
        [sys.executable, *command, "--port", "0"], stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            url = next(
                found[0] for line in server.stderr if (found := re.search(r"http://\S+\d", line))
            )
            photograph_page(url, path)
        finally:
            server.terminate()


def photograph_page(url, path):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome")
    for flag in (*FLAGS.split(), "--window-size=1200,990"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        wait = WebDriverWait(browser, 60)
        browser.get(url)
        wait.until(lambda page: page.find_element("css selector", "#model").text)
        browser.find_element("css selector", "#source").send_keys(TEXT)
        wait.until(lambda page: len(page.find_elements("css selector", "#tree text")) > 3)
        wait.until(lambda page: len(page.find_elements("css selector", ".translation")) == 2)
        browser.save_screenshot(path)
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
