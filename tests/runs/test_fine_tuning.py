"""Training a part of a model: LoRA, frozen weights, and the optimizer by name."""

import re
import shutil

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.runs.averaging import average_run
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
from keras_transformer.runs.fine_tuning import adapt, plain_model
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.recipe import Recipe
from keras_transformer.runs.training_settings import FREEZE, TrainingSettings
from tests.runs import tiny_run
from tests.session import made_once

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

TRAINED = r"attention/(query|value)/kernel"


def train(run, base, **training):
    recipe = tiny_run.recipe(init_from=str(base), **training).to_dict()
    recipe["vocabulary"] = {}
    return tiny_run.quiet(Recipe.from_dict(recipe), run).train()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_run.plain_run(tmp_path_factory)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory, base):
    """A run of LoRA with a mean of the weights, whose last two epochs are averaged."""
    settings = {"lora_rank": 2, "ema_momentum": 0.9, "average": 2}
    return made_once(tmp_path_factory, "adapted", lambda run: train(run, base, **settings))


def weights_of(path):
    return {weight.path: np.array(weight) for weight in kt.load_model(path).weights}


@pytest.mark.long
def test_model_of_lora_is_a_plain_one_that_differs_in_some_matrices_by_the_rank(base, adapted):
    before = weights_of(base / "model.keras")
    checkpoint = tiny_run.checkpoints(adapted)[10][0]
    after = kt.load_model(adapted / "model.keras")
    assert {w.path for w in after.trainable_weights} == before.keys()
    for weight in after.weights:
        difference = np.array(weight) - before[weight.path]
        if re.search(TRAINED, weight.path):
            # That of the average of two epochs, of the rank 2 each.
            assert 0 < np.linalg.matrix_rank(difference, tol=1e-6) <= 4, weight.path
        else:
            assert not difference.any(), weight.path
    stored = {name for name in checkpoint if name.startswith("trained/")}
    assert all("lora_kernel" in name or "seed" in name for name in stored) and stored


@pytest.mark.long
def test_average_of_lora_is_that_of_the_sums(base, adapted, tmp_path):
    """By NumPy, from the moving averages that the checkpoints hold."""
    paths = average_run(adapted, tmp_path / "mean.keras", last=2)
    before, mean = weights_of(base / "model.keras"), weights_of(tmp_path / "mean.keras")
    saved = [arrays for arrays, _ in map(kt.runs.read_checkpoint, paths)]
    for path in filter(re.compile(TRAINED).search, before):
        name = path.replace("/", "_").removesuffix("kernel")
        averages = [
            [a[f"optimizer/adam/{name}lora_kernel_{side}_average"] for side in "ab"] for a in saved
        ]
        expected = before[path] + np.mean([a @ b for a, b in averages], axis=0)
        np.testing.assert_allclose(mean[path], expected, atol=1e-6)
    whole = weights_of(adapted / "model.keras")
    tiny_run.assert_equal(list(mean.values()), list(whole.values()))


@pytest.mark.long
def test_resume_needs_the_base_as_it_was(base, adapted, tmp_path):
    for folder, kept in ((base, "base"), (adapted, "run")):
        shutil.copytree(folder, tmp_path / kept)
    settings = {"lora_rank": 2, "ema_momentum": 0.9, "average": 2, "epochs": 3}
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(base), str(tmp_path / "base")))
    other = tmp_path / "base" / "model.keras"
    shutil.copyfile(adapted / "model.keras", other)
    with pytest.raises(ValueError, match="another hash. Restore that file, or start again"):
        train(tmp_path / "run", tmp_path / "base", **settings)
    with pytest.raises(ValueError, match="another hash. Restore that file, or average another"):
        average_run(tmp_path / "run", tmp_path / "mean.keras", last=2)
    other.unlink()
    with pytest.raises(FileNotFoundError, match="There is no trained model"):
        train(tmp_path / "run", tmp_path / "base", **settings)


@pytest.mark.long
def test_frozen_parts_stay_and_adafactor_trains_the_others(base, tmp_path):
    report = train(tmp_path / "run", base, freeze=["embeddings", "encoder"], optimizer="adafactor")
    before = weights_of(base / "model.keras")
    for path, value in weights_of(tmp_path / "run" / "model.keras").items():
        is_frozen = "embedding" in path or path.startswith("encoder/")
        assert np.array_equal(value, before[path]) == is_frozen, path
    assert report["val_loss"] < tiny_run.history(base)[0]["val_loss"]
    first = CheckpointFolder(RunFolder(tmp_path / "run").checkpoints).last(1)[0]
    arrays = kt.runs.read_checkpoint(first)[0]
    weights = [name for name in arrays if name.startswith("trained/") and "seed" not in name]
    assert weights and all(name.startswith("trained/decoder/block") for name in weights)


def small_model(**fields):
    sizes = {"num_layers": 1, "hidden_dim": 16, "intermediate_dim": 16, "num_heads": 2}
    return kt.Transformer(vocabulary_size=50, **sizes | fields)


@pytest.mark.parametrize(
    "settings",
    [
        {"freeze": ["embeddings"]},
        *(pytest.param(s, marks=pytest.mark.long) for s in ({"lora_rank": 2}, {})),
    ],
)
def test_added_rows_are_trained_beside_a_frozen_matrix(settings):
    """Their bias is -1e9 before and begins at 0; old rows stay, unless all is trained."""
    model = small_model(output_bias=True, added_tokens=3)
    bias = np.zeros(50)
    bias[-3:] = -1e9
    model.logits_layer.bias.assign(bias)
    before = np.array(model.encoder.embedding.embeddings)
    adapt(model, TrainingSettings(init_from="base", **settings))
    model.compile(keras.optimizers.SGD(0.5), kt.SmoothedCrossEntropy(0.1, 0))
    rng = np.random.default_rng(1)
    source, target, labels = rng.integers(3, 50, (3, 4, 7))
    loss = model.train_on_batch([source, target], labels)
    assert loss < 10, "labels of added tokens have a probability"
    plain = plain_model(model)
    after = np.array(plain.encoder.embedding.embeddings)
    assert np.abs(after - before)[-3:].max(axis=1).all()
    assert (np.array_equal(after[:-3], before[:-3])) == bool(settings)
    assert np.abs(plain.logits_layer.bias).max() < 1
    outputs = [made([source, target], training=False) for made in (model, plain)]
    np.testing.assert_allclose(*outputs, atol=1e-5)


def test_frozen_parts_get_no_lora_and_something_must_be_left_to_train():
    def adapted(**settings):
        model = small_model()
        adapt(model, TrainingSettings(init_from="base", **settings))
        return model

    model = adapted(freeze=["decoder"], lora_rank=2, lora_layers=["query", "feed_forward"])
    trained = [weight.path for weight in model.trainable_weights]
    assert len(trained) == 3 * 2  # two matrices for each dense layer of the encoder
    for path in trained:
        assert re.match(r"encoder/.*/(query|intermediate|output)/lora_kernel_[ab]$", path)
    for settings in ({"freeze": ["encoder", "decoder"], "lora_rank": 2}, {"freeze": [*FREEZE]}):
        with pytest.raises(ValueError, match="must leave weights to train. Received: freeze="):
            adapted(**settings)
