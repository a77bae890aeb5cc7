"""Early stopping, interrupted runs that resume, and what a `RunKeeper` refuses."""

import math
import shutil
import signal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer import make_dataset
from keras_transformer.data.pipeline import BatchStream
from keras_transformer.runs.fit_scope import FitScope
from keras_transformer.runs.keeper import RunKeeper
from tests.builders import learned_tokenizer
from tests.examples import examples
from tests.runs.test_folder import tree
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
        keeper.state.history.append({"epoch": epoch} | ({} if value is None else {monitor: value}))
    assert len(keeper.state.history) == expected
    assert not RunKeeper("unused", stream, monitor=monitor).finished
    taken = [value for value in values[:expected] if value is not None and value == value]
    best = (min if lower_is_better else max)(taken, default=None)
    assert (keeper.best() or {}).get("epoch") == (None if best is None else values.index(best))


def test_second_signal_stops_the_run_immediately():
    """While the first waits for the end of a long update."""
    before = signal.getsignal(signal.SIGINT)
    scope = FitScope()
    scope.begin({}, is_closed_by_fit=True)
    signal.raise_signal(signal.SIGINT)
    assert scope.signal == signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


# === Refusals ===


def fit(model, dataset, keeper, *others, **options):
    callbacks = [keeper, *others]
    return model.fit(dataset, verbose=0, shuffle=False, callbacks=callbacks, **options).history


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A dataset, the history of an epoch, and a folder where it was killed in the middle."""
    folder = tmp_path_factory.mktemp("interrupted")
    tokenizer = learned_tokenizer(PAIRS, 320)
    dataset, other = (make_dataset(PAIRS, tokenizer, **BATCH)[0] for _ in range(2))
    whole = fit(compiled(), dataset, RunKeeper(folder / "whole", dataset))
    with pytest.raises(Killed):
        keeper = RunKeeper(folder / "kept", dataset, every=2)
        fit(compiled(), dataset, keeper, At(3, kill))
    keeper.close()
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
    before, handler = tree(folder / "checkpoints"), signal.getsignal(signal.SIGINT)
    keeper, model = RunKeeper(folder, dataset, every=2, print_fn=str), compiled()
    model.steps_per_execution = steps
    given = other if "x" in arguments else dataset
    with pytest.raises(ValueError, match=message):
        fit(model, given, keeper, **{n: v for n, v in arguments.items() if n != "x"})
    assert tree(folder / "checkpoints") == before
    model.steps_per_execution = 1
    assert not (folder / ".run.lock").exists()
    assert signal.getsignal(signal.SIGINT) == handler
    assert fit(model, dataset, keeper) == whole


def test_restore_that_was_refused_leaves_the_next_fit_refused(interrupted, tmp_path):
    dataset, _, _, killed = interrupted
    folder = shutil.copytree(killed, tmp_path / "kept")
    before = tree(folder / "checkpoints")
    keeper, model = RunKeeper(folder, dataset, print_fn=str), compiled(optimizer="sgd")
    for begin in (keeper.restore, lambda model: fit(model, dataset, keeper)):
        with pytest.raises(ValueError, match="must hold checkpoints of this model"):
            begin(model)
    assert tree(folder / "checkpoints") == before


def test_fit_after_a_restore_that_found_nothing_saves_the_first_weights(interrupted, tmp_path):
    """`every` may be a number of NumPy."""
    dataset, model = interrupted[0], compiled()
    keeper = RunKeeper(tmp_path, dataset, every=np.int64(2))
    assert not keeper.restore(model)
    with pytest.raises(Killed):
        fit(model, dataset, keeper, At(1, kill))
    keeper.close()
    (saved,) = (tmp_path / "checkpoints").iterdir()
    assert saved.name == "checkpoint-00000000.npz"
