"""`fit` with a `RunKeeper` goes on after an interruption as if there had been none."""

import contextlib
import signal

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.runs import (
    CheckpointFolder,
    RunFolder,
    RunInUseError,
    StopOnNonFiniteLoss,
    TrainingInterrupted,
)
from keras_transformer.runs.callbacks import NonFiniteLossError
from keras_transformer.runs.checkpoint_file import read_checkpoint
from keras_transformer.training import model_state
from keras_transformer.training.callbacks import BestModel
from tests.builders import tokenizer_fixture
from tests.training.small_models import EAGER

PAIRS = kt.number_names("train", 90)
EPOCHS, BATCHES = 3, 4
BATCH = {"batch_sentences": 24, "seed": 1}
GRAPH = {"run_eagerly": False}  # as by default, where XLA compiles a plain Keras model


tokenizer = tokenizer_fixture(PAIRS, 320)


@pytest.fixture
def dataset(tokenizer):
    return kt.make_dataset(PAIRS, tokenizer, **BATCH)[0]


def functional(width=8):
    """A plain Keras model."""
    source, target = (
        keras.Input((None,), dtype="int32", name=f"{side}_token_ids")
        for side in ("encoder", "decoder")
    )
    embedding = keras.layers.Embedding(320, width, name="embedding")
    x = embedding(target) + keras.ops.mean(embedding(source), axis=1, keepdims=True)
    x = keras.layers.Dropout(0.2, seed=1, name="dropout")(x)
    logits = keras.layers.Dense(320, name="logits")(x)
    inputs = {"encoder_token_ids": source, "decoder_token_ids": target}
    return keras.Model(inputs, logits, name="plain")


def in_float16():
    """A loss-scaling optimizer wraps its optimizer, and its variables have other names."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return functional()
    finally:
        keras.config.set_dtype_policy("float32")


class Subclassed(keras.Model):
    """Not built before the first batch."""

    def __init__(self):
        super().__init__(name="subclassed")
        self.embedding = keras.layers.Embedding(320, 8, name="embedding")
        self.dropout = keras.layers.Dropout(0.2, seed=1, name="dropout")
        self.logits = keras.layers.Dense(320, name="logits")

    def call(self, inputs, training=False):
        x = self.embedding(inputs["decoder_token_ids"])
        return self.logits(self.dropout(x, training=training))


def transformer(**options):
    """It logs the norm of its gradient."""
    sizes = {"hidden_dim": 8, "intermediate_dim": 8, "num_heads": 1, "num_layers": 1}
    dropouts = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.1)
    return kt.Transformer(vocabulary_size=320, **sizes | dropouts | options)


def compiled(make=functional, seed=1, optimizer=None, loss=None, **options):
    keras.utils.set_random_seed(seed)
    model = make()
    schedule = kt.WarmupSchedule.from_peak(8, 0.05, 3)
    model.compile(
        optimizer or keras.optimizers.Adam(schedule),
        loss or kt.SmoothedCrossEntropy(),
        weighted_metrics=[kt.TokenAccuracy()],
        **EAGER | options,
    )
    return model


def assert_same_state(actual, expected):
    """Without the names: Keras numbers the random states of a process, which have no name."""
    for one, other in zip(actual.values(), expected.values(), strict=True):
        np.testing.assert_array_equal(one, other)


def without_metrics(state):
    return {name: array for name, array in state.items() if not name.startswith("metrics/")}


class At(keras.callbacks.Callback):
    """Calls a function after some batch, counted over all epochs of this `fit` from 1.

    Batch 0: when the training begins.
    """

    def __init__(self, batch, function):
        super().__init__()
        self._left, self._function = batch, function

    def on_train_begin(self, logs=None):
        if self._left == 0:
            self._function()

    def on_train_batch_end(self, batch, logs=None):
        self._left -= bool(logs)
        if self._left == 0:
            self._function()


class Killed(Exception):
    pass


def kill():
    raise Killed


def poison(model):
    """Makes a weight NaN."""
    variable = model.trainable_variables[-1]
    variable.assign(np.full(variable.shape, np.nan))


def kept_fit(model, dataset, folder, *others, before=(), epochs=EPOCHS, **options):
    lines = []
    keeper = kt.RunKeeper(folder, dataset, every=2, print_fn=lines.append, **options)
    callbacks = [*before, kt.TrainingLogger(dataset), keeper, *others]
    history = model.fit(dataset, epochs=epochs, verbose=0, shuffle=False, callbacks=callbacks)
    return history, lines


def outcome(model, folder, history):
    """Everything that must not depend on interruptions."""
    rows = RunFolder(folder).history()
    for table in (*rows, history.history):
        del table["tokens_per_second"]
    kept = sorted(path.name for path in (folder / "checkpoints").iterdir())
    return model_state(model), (rows, history.history, history.epoch, kept)


@pytest.mark.parametrize(
    "make, options, kills",
    [
        (functional, {}, [1, 7]),
        (Subclassed, {}, [7]),
        pytest.param(
            functional, GRAPH | {"steps_per_execution": 2}, [1, 1, 2], marks=pytest.mark.long
        ),
        pytest.param(in_float16, GRAPH, [6], marks=pytest.mark.long),
    ],
    ids=["functional", "not built", "two steps per execution", "loss scaling"],
)
def test_killed_fit_ends_as_one_that_was_never_killed(make, options, kills, dataset, tmp_path):
    """Every process begins with other random weights, and goes on from the folder alone."""
    model = compiled(make, **options)
    history, lines = kept_fit(model, dataset, tmp_path / "whole")
    assert lines == []
    state, rest = outcome(model, tmp_path / "whole", history)
    assert rest[2] == list(range(EPOCHS)) and len(rest[0]) == EPOCHS

    folder = tmp_path / "killed"
    for seed, batch in enumerate(kills, start=1):
        with pytest.raises(Killed):
            kept_fit(compiled(make, seed, **options), dataset, folder, At(batch, kill))
    model = compiled(make, seed=9, **options)
    history, lines = kept_fit(model, dataset, folder)
    assert lines == ["Resuming after 6 updates, at epoch 2, batch 3."]
    found_state, found = outcome(model, folder, history)
    assert_same_state(found_state, state)
    assert found == rest

    # The same again has nothing to do; more epochs extend it.
    again = compiled(make, seed=10, **options)
    history, lines = kept_fit(again, dataset, folder)
    assert lines == ["This run is finished: 3 epochs, 12 updates."]
    assert history.history["loss"] == rest[1]["loss"]
    assert_same_state(without_metrics(model_state(again)), without_metrics(state))
    history, _ = kept_fit(again, dataset, folder, epochs=EPOCHS + 1)
    assert history.epoch == list(range(EPOCHS + 1))


def test_interrupt_saves_and_shows_one_line_in_a_notebook(dataset, tmp_path):
    handler = signal.getsignal(signal.SIGINT)
    press = At(3, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(TrainingInterrupted) as caught:
        kept_fit(compiled(), dataset, tmp_path, press)
    assert signal.getsignal(signal.SIGINT) == handler
    (line,) = caught.value._render_traceback_()
    # The signal comes after the keeper: at the next batch.
    path = tmp_path / "checkpoints" / "checkpoint-00000004.npz"
    assert line == f"Stopped by SIGINT. The checkpoint is {path}. Run this cell again to go on."
    assert path.is_file()


@pytest.mark.long
@pytest.mark.parametrize("make, presses", [(transformer, 1), (functional, 2)])
def test_after_a_fit_that_failed_signals_and_folder_are_free(make, presses, dataset, tmp_path):
    """Keras calls no callback then: with a plain Keras model, the first signal is only noted."""
    handler = signal.getsignal(signal.SIGINT)
    errors = []
    for _ in range(2):  # the second `fit` takes the folder, although the first error is kept
        with pytest.raises(Killed) as caught:
            kept_fit(compiled(make), dataset, tmp_path, At(2, kill))
        errors.append(caught)
    for _ in range(presses - 1):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == handler
    assert not (tmp_path / ".run.lock").exists()


@pytest.mark.long
def test_kept_fit_inside_of_a_kept_fit_takes_neither_signals_nor_folder_from_it(dataset, tmp_path):
    def train_another():
        kept_fit(compiled(transformer), dataset, tmp_path / "inner", epochs=1)
        with pytest.raises(RunInUseError):
            kept_fit(compiled(transformer), dataset, tmp_path / "outer", epochs=1)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(TrainingInterrupted):
        kept_fit(compiled(transformer), dataset, tmp_path / "outer", At(2, train_another))


def test_callback_that_stops_within_an_epoch_is_resumed_there(dataset, tmp_path):
    whole = compiled()
    kept_fit(whole, dataset, tmp_path / "whole")
    model = compiled()

    def stop():
        model.stop_training = True

    folder = tmp_path / "stopped"
    keeper = kt.RunKeeper(folder, dataset, every=2, print_fn=lambda line: None)
    model.fit(dataset, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=[At(7, stop), keeper])
    assert CheckpointFolder(folder / "checkpoints").newest()[2]["batch"] == 3
    # One keeper for two calls of `fit`.
    model.fit(dataset, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=[keeper])
    assert_same_state(model_state(model), model_state(whole))


def test_patience_counts_over_interruptions(dataset, tmp_path):
    """The second epoch is the best; each `fit` is killed after the next one."""
    values = [3.0, 2.0, 2.5, 2.25, 2.75, 1.0]

    class Value(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["value"] = values[epoch]

    arguments = {"before": [Value()], "monitor": "value", "patience": 3, "epochs": len(values)}
    arguments["checkpoints"] = CheckpointFolder(tmp_path / "checkpoints", mode="min")
    for seed in (1, 2):
        with pytest.raises(Killed):
            kept_fit(compiled(seed=seed), dataset, tmp_path, At(BATCHES + 1, kill), **arguments)
    for seed in (3, 4):
        history, lines = kept_fit(compiled(seed=seed), dataset, tmp_path, **arguments)
        assert history.history["value"] == values[:5]
    assert lines == ["This run is finished: 5 epochs, 20 updates."]


def test_two_keepers_of_two_folders_keep_two_trainings(dataset, tmp_path):
    model = compiled()
    for name in ("first", "second"):
        history, _ = kept_fit(model, dataset, tmp_path / name, epochs=1)
        assert history.epoch == [0]
    assert model.fit(dataset, epochs=1, verbose=0, shuffle=False).epoch == [0]
    steps = [
        CheckpointFolder(tmp_path / name / "checkpoints").newest()[2]["step"]
        for name in ("first", "second")
    ]
    assert steps == [BATCHES, 2 * BATCHES]
    with pytest.raises(ValueError, match="one `RunKeeper`"):
        kept_fit(model, dataset, tmp_path / "a", kt.RunKeeper(tmp_path / "b", dataset))


def test_history_of_an_interrupted_epoch_is_that_of_the_whole_epoch(dataset, tmp_path):
    """`gradient_norm` is the mean of all updates, also of those before the kill.

    Loss scaling skips an update whose norm is not finite.
    """

    class Norms(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if logs:
                logs["gradient_norm"] = np.inf if batch == 1 else float(2**batch)

    for seed, others in ((1, [At(3, kill)]), (2, [])):
        with pytest.raises(Killed) if others else contextlib.nullcontext():
            history, _ = kept_fit(
                compiled(seed=seed), dataset, tmp_path, *others, before=[Norms()], epochs=1
            )
    assert history.history["gradient_norm"] == [(1 + 4 + 8) / (BATCHES - 1)]


@pytest.mark.tensorflow_only
@pytest.mark.parametrize(
    "batch, is_validated, problem, at",
    [
        (2, True, " not finite", 2),  # found by the save
        (3, True, "loss nan", 4),  # found by the next batch
        (BATCHES, True, "val_loss nan", BATCHES),
        (BATCHES, False, " not finite", BATCHES),
    ],
)
def test_weights_that_are_not_finite_are_never_saved(
    batch, is_validated, problem, at, dataset, tmp_path
):
    model, best = compiled(), tmp_path / "best.keras"

    checkpoints = CheckpointFolder(tmp_path / "checkpoints")
    guard = StopOnNonFiniteLoss(dataset.stream, checkpoints)
    keeper = kt.RunKeeper(tmp_path, dataset, every=2, guard=guard, checkpoints=checkpoints)
    callbacks = [At(batch, lambda: poison(model)), guard, BestModel(best, "loss"), keeper]
    validation = {"validation_data": dataset} if is_validated else {}
    with pytest.raises(NonFiniteLossError) as caught:
        model.fit(dataset, verbose=0, shuffle=False, callbacks=callbacks, **validation)
    assert not best.exists()
    (saved,) = checkpoints.last(1)
    arrays, metadata = read_checkpoint(saved)
    assert metadata["step"] == (0 if batch == 2 else 2)
    assert all(np.isfinite(array).all() for array in arrays.values())
    message = str(caught.value)
    assert f"{problem} at update {at} (epoch 1, batch {at})" in message
    numbers = ", ".join(str(row + 1) for row in sorted(dataset.stream.batches(0)[at - 1]))
    assert f"the training pairs {numbers}. The last good checkpoint is {saved}." in message
    assert "pairs (counted from 1 over all corpora, without those that are left out)" in message


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("batch", [1, 3])
def test_fit_that_ends_at_a_nan_goes_on_from_before_it(batch, dataset, tmp_path):
    """Within an epoch, or at its end. The keeper has no guard."""
    model, terminate = compiled(), keras.callbacks.TerminateOnNaN()

    def fit(*callbacks):
        keeper = kt.RunKeeper(tmp_path, dataset, print_fn=str)
        callbacks = [*callbacks, terminate, keeper]
        return model.fit(dataset, verbose=0, shuffle=False, callbacks=callbacks).history["loss"]

    with pytest.warns(UserWarning, match="not finite, so no checkpoint is written"):
        assert np.isnan(fit(At(batch, lambda: poison(model)))).all()
    assert CheckpointFolder(tmp_path / "checkpoints").newest()[2]["step"] == 0
    assert np.isfinite(fit()).all()


@pytest.mark.parametrize("name, value", [("every", None), ("every", 0), ("patience", np.nan)])
def test_number_that_is_none_or_too_small_is_refused(name, value, dataset, tmp_path):
    with pytest.raises(ValueError, match=f"`{name}` must be at least 1. Received: {name}="):
        kt.RunKeeper(tmp_path, dataset, **{name: value})


@pytest.mark.tensorflow_only
def test_report_of_what_is_not_finite_names_what_there_is(dataset, tmp_path):
    """Before the first update, and after several steps per execution beyond the last batch."""
    guard = StopOnNonFiniteLoss(dataset.stream, CheckpointFolder(tmp_path))
    guard.set_model(compiled())
    with pytest.raises(NonFiniteLossError, match="kernel not finite before the first update"):
        guard.check_state({"kernel": np.array([np.nan])})
    guard.on_epoch_begin(0)
    with pytest.raises(NonFiniteLossError, match=rf"loss nan .*batch {BATCHES}\).* pairs 1"):
        guard.on_train_batch_end(BATCHES, {"loss": np.nan})


class Foreign(Subclassed):
    """Its config does not state the dropout."""

    def __init__(self, rate=0.2):
        super().__init__()
        self.dropout.rate = rate


def kept_training(dataset, folder, make=transformer, of_model=(), adam=(), smoothing=0.1, **others):
    """Ends where the training would begin; returns what was printed."""
    model = compiled(
        lambda: make(**dict(of_model)),
        optimizer=keras.optimizers.Adam(**{"learning_rate": 0.05, **dict(adam)}),
        loss=kt.SmoothedCrossEntropy(smoothing),
    )
    for name, value in others.items():
        setattr(model, name, value)
    lines = []
    keeper = kt.RunKeeper(folder, dataset, print_fn=lines.append)
    with contextlib.suppress(Killed):
        model.fit(dataset, verbose=0, shuffle=False, callbacks=[keeper, At(0, kill)])
    keeper.close()
    return lines


@pytest.fixture(scope="module")
def kept(tokenizer, tmp_path_factory):
    """A dataset, and a folder with a first checkpoint."""
    folder = tmp_path_factory.mktemp("plain")
    dataset, _ = kt.make_dataset(PAIRS, tokenizer, **BATCH)
    kept_training(dataset, folder)
    return dataset, folder


@pytest.mark.slow_on_jax
@pytest.mark.parametrize(
    "changes, message",
    [
        ({"of_model": {"dropout": 0.3}}, r"Transformer\.config\.dropout=0.3, not 0.1"),
        ({"smoothing": 0.0}, "label_smoothing=0.0, not 0.1"),
        ({"adam": {"beta_1": 0.8}}, r"Adam\.beta_1=0.8, not 0.9"),
        ({"r_drop": 1}, "r_drop=1.0, not 0.0"),
        ({"adam": {"clipnorm": 1.0}}, r"Adam\.clipnorm=1.0, not None"),
    ],
    ids=str,
)
def test_another_training_is_refused_by_the_name_of_what_changed(changes, message, kept):
    dataset, folder = kept
    with refused(ValueError, rf"training differs.*Received: .*{message}.*choose another", folder):
        kept_training(dataset, folder, **changes)


@pytest.mark.slow_on_jax
@pytest.mark.parametrize(
    "name, first, then, message",
    [
        ("adam", *({"learning_rate": kt.WarmupSchedule.from_peak(8, 0.05, n)} for n in (3, 5)),
         "WarmupSchedule.warmup_steps=5, not 3"),
        ("of_model", {}, {"rate": 0.4}, "Dropout.rate=0.4, not 0.2"),
    ],
)  # fmt: skip
def test_schedule_and_parts_of_a_model_without_config_count(
    name, first, then, message, dataset, tmp_path
):
    kept_training(dataset, tmp_path, Foreign, **{name: first})
    with refused(ValueError, message, tmp_path):
        kept_training(dataset, tmp_path, Foreign, **{name: then})


@pytest.mark.slow_on_jax
@pytest.mark.parametrize(
    "changes",
    [{}, {"adam": {"learning_rate": 0.01}}, {"fused_loss": False, "accumulation_steps": 2}],
    ids=str,
)
def test_what_is_no_other_training_is_resumed(changes, kept):
    """How the update is computed, and a rate that is a number: the checkpoint holds it."""
    assert kept_training(*kept, **changes) == ["Resuming after 0 updates, at epoch 1, batch 1."]


@contextlib.contextmanager
def refused(error, match, folder):
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(error, match=match):
        yield
    assert signal.getsignal(signal.SIGINT) == handler
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before


def test_what_does_not_fit_is_refused(dataset, tokenizer, tmp_path):
    folder = tmp_path / "kept"
    kept_fit(compiled(), dataset, folder, epochs=1)

    with refused(ValueError, "Transform or select the pairs before", folder):
        kt.RunKeeper(folder, iter(dataset))
    with refused(ValueError, "Received: 2 batches per epoch, of 4", folder):
        keeper = kt.RunKeeper(folder, dataset)
        compiled().fit(dataset, verbose=0, shuffle=False, steps_per_epoch=2, callbacks=[keeper])

    with refused(ValueError, "must hold checkpoints of this model.*choose another", folder):
        kept_fit(compiled(lambda: functional(width=9)), dataset, folder)
    others, _ = kt.make_dataset(PAIRS[:80], tokenizer, **BATCH)
    with refused(ValueError, "training pairs differ.*choose another folder", folder):
        kept_fit(compiled(), others, folder)
    reseeded, _ = kt.make_dataset(PAIRS, tokenizer, batch_sentences=24, seed=2)
    with refused(ValueError, "seed=2, not 1", folder):
        kept_fit(compiled(), reseeded, folder)
    noisy, _ = kt.make_dataset(PAIRS, tokenizer, **BATCH, word_dropout=0.1)
    kept_fit(compiled(), noisy, tmp_path / "noisy", epochs=1)
    for wrong, kept, name in (
        (noisy, "kept", "0.1, not None"),
        (dataset, "noisy", "None, not 0.1"),
    ):
        with refused(ValueError, f"word_dropout={name}", tmp_path / kept):
            kept_fit(compiled(), wrong, tmp_path / kept)

    (folder / "config.yaml").touch()
    with refused(ValueError, "run of a recipe", folder):
        kept_fit(compiled(), dataset, folder)
    (folder / "config.yaml").unlink()
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
    with refused(ValueError, "holds no checkpoint", folder):
        kept_fit(compiled(), dataset, folder)


def test_folder_in_use_is_refused(dataset, tmp_path):
    with RunFolder(tmp_path).locked(), pytest.raises(RunInUseError):
        kept_fit(compiled(), dataset, tmp_path)
