"""Early stopping, interrupted runs that resume, and what a `RunKeeper` refuses."""

import math
import shutil
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer import Tokenizer, make_dataset
from keras_transformer.data.pipeline import BatchStream
from keras_transformer.runs.fit_scope import FitScope, TrainingInterrupted
from keras_transformer.runs.keeper import RunKeeper
from tests.builders import assert_same_arrays
from tests.examples import examples
from tests.runs import tiny_run
from tests.runs.test_kept_fit import BATCH, PAIRS, At, Killed, compiled, kill


def epochs_until_stop(values, patience, better):
    """Early stopping in plain Python. An epoch without a value is `None`; NaN is never the best."""
    best, waited = None, 0
    for epoch, value in enumerate(values, start=1):
        waited += 1
        if value is None:
            continue
        if not math.isnan(value) and (best is None or better(value, best)):
            best, waited = value, 0
        if waited >= patience and best is not None:
            return epoch
    return len(values)


@examples(short=25, long=1000)
@given(
    st.lists(st.none() | st.just(math.nan) | st.integers(0, 5).map(float), max_size=12),
    st.integers(1, 4),
    st.sampled_from(["val_loss", "val_bleu", "val_per", "loss"]),
)
def test_early_stopping_equals_plain_python(values, patience, monitor):
    lower_is_better = monitor != "val_bleu"
    expected = epochs_until_stop(
        values, patience, float.__lt__ if lower_is_better else float.__gt__
    )
    stream = object.__new__(BatchStream)  # not read
    keeper = RunKeeper("unused", stream, monitor=monitor, patience=patience)
    for epoch, value in enumerate(values):
        if keeper.finished:
            break
        keeper.history.append({"epoch": epoch} | ({} if value is None else {monitor: value}))
    assert len(keeper.history) == expected
    assert not RunKeeper("unused", stream, monitor=monitor).finished
    taken = [value for value in values[:expected] if value is not None and value == value]
    best = (min if lower_is_better else max)(taken, default=None)
    assert (keeper.best() or {}).get("epoch") == (None if best is None else values.index(best))


EVERY = 3
# The learning rate is far too high, so that it stops early.
RECIPE = tiny_run.recipe(
    **{"epochs": 12, "learning_rate": 0.5, "patience": 1, "clip_norm": 1, "ema_momentum": 0.5},
    **{"average": 3, "checkpoint_updates": EVERY, "keep_last": 3},
)


@pytest.mark.long
def test_interrupted_run_ends_bit_identical_to_an_uninterrupted_run(tmp_path):
    """Early stopping, averaged weights, dropout and kept checkpoints are bit-identical."""
    run, again = tmp_path / "whole", tmp_path / "run"
    tiny_run.WatchedTrainer(RECIPE, run).train()
    values = [row["val_loss"] for row in tiny_run.history(run)]
    assert len(values) == epochs_until_stop([*values, math.inf], 1, float.__lt__) < 12
    saved = tiny_run.checkpoints(run)
    updates = max(saved)
    per_epoch = updates // len(values)
    # At the last batch of an epoch, so that the epoch is finished first; and near the end, where
    # an extra checkpoint would displace one of those that are averaged.
    late = next(n for n in (updates - 1, updates - 2) if n % EVERY)
    for update, number in ((updates - per_epoch, signal.SIGINT), (late, signal.SIGTERM)):
        handlers = [signal.getsignal(number) for number in signal.Signals]
        stop = tiny_run.AtUpdate(update, lambda number=number: signal.raise_signal(number))
        with pytest.raises(TrainingInterrupted) as caught:
            tiny_run.WatchedTrainer(RECIPE, again, before=[stop]).train()
        assert caught.value.signal == number
        stopped = tiny_run.checkpoints(again)
        assert max(stopped) == update
        assert (stopped[update][1]["kinds"] == ["stop"]) == (update == late)
        assert [signal.getsignal(number) for number in signal.Signals] == handlers
        assert len(tiny_run.history(again)) == update // per_epoch, "each epoch once"
    tiny_run.WatchedTrainer(RECIPE, again).train()
    assert tiny_run.losses(again) == tiny_run.losses(run)
    resumed = tiny_run.checkpoints(again)
    assert list(resumed) == list(saved)
    for update, (arrays, metadata) in saved.items():
        assert_same_arrays(resumed[update][0], arrays)
        assert resumed[update][1]["score"] == metadata["score"]
    models = [tiny_run.saved_weights(folder / "model.keras") for folder in (run, again)]
    tiny_run.assert_equal(*models)


def test_second_signal_stops_the_run_immediately():
    """While the first waits for the end of a long update."""
    before = signal.default_int_handler  # a process in the background may ignore SIGINT
    signal.signal(signal.SIGINT, before)
    scope = FitScope()
    scope.begin()
    signal.raise_signal(signal.SIGINT)
    assert scope.signal == signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


# === Refusals ===


@pytest.mark.parametrize("name", ["every", "patience"])
@pytest.mark.parametrize("number", [0, -3])
def test_number_below_1_is_refused(name, number):
    stream = object.__new__(BatchStream)  # not read
    with pytest.raises(ValueError, match=f"`{name}` must be at least 1.*{name}={number}"):
        RunKeeper("unused", stream, **{name: number})


def fit(model, dataset, keeper, *others, **options):
    callbacks = [keeper, *others]
    return model.fit(dataset, verbose=0, shuffle=False, callbacks=callbacks, **options).history


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A dataset, the history of an epoch, and a folder where it was killed in the middle."""
    folder = tmp_path_factory.mktemp("interrupted")
    lines = (text for pair in PAIRS for text in pair)
    tokenizer = Tokenizer.train_on_lines(lines, 320, folder / "numbers.model")
    dataset, other = (make_dataset(PAIRS, tokenizer, **BATCH)[0] for _ in range(2))
    whole = fit(compiled(), dataset, RunKeeper(folder / "whole", dataset))
    with pytest.raises(Killed):
        fit(compiled(), dataset, RunKeeper(folder / "kept", dataset, every=2), At(3, kill))
    FitScope._open[-1].close()  # that of the killed one
    return dataset, other, whole, folder / "kept"


@pytest.mark.parametrize(
    ("steps", "arguments", "message"),
    [
        (1, {"initial_epoch": 1, "epochs": 2}, "goes on at epoch 0. Received: initial_epoch=1"),
        pytest.param(
            *(4, {}, "steps_per_execution=4, 2 batches. Compile with"),
            marks=pytest.mark.backends("tensorflow", "jax"),  # PyTorch runs one step at a time
        ),
        (1, {"x": "other"}, "Received: another dataset"),
    ],
    ids=["initial epoch", "steps", "dataset"],
)
def test_refused_fit_frees_the_folder_and_the_next_one_goes_on(
    interrupted, tmp_path, steps, arguments, message
):
    """In the middle of an epoch, whose loss and metrics so far are kept."""
    dataset, other, whole, killed = interrupted
    folder = shutil.copytree(killed, tmp_path / "kept")
    before, handler = contents(folder / "checkpoints"), signal.getsignal(signal.SIGINT)
    keeper, model = RunKeeper(folder, dataset, every=2, print_fn=str), compiled()
    model.steps_per_execution = steps
    given = other if "x" in arguments else dataset
    with pytest.raises(ValueError, match=message):
        fit(model, given, keeper, **{n: v for n, v in arguments.items() if n != "x"})
    assert contents(folder / "checkpoints") == before
    model.steps_per_execution = 1
    assert not (folder / ".run.lock").exists()
    assert signal.getsignal(signal.SIGINT) == handler
    assert fit(model, dataset, keeper) == whole
