"""Builds the tokenizers, batches and compiled model of a run."""

import itertools
import pathlib
import shutil
from typing import TypeAlias

import keras

from keras_transformer.data.batching import tag_ids
from keras_transformer.data.language_codes import LANGUAGES, ids_of_parts
from keras_transformer.data.pipeline import BatchStream
from keras_transformer.data.placeholders import count_symbols
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.tokenizer_like import splits_by_language
from keras_transformer.decoding.languages import split_tag, tag_lines
from keras_transformer.decoding.lines import learned_positions
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.fine_tuning import adapt
from keras_transformer.runs.folder import RunFolder
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.metrics import Perplexity, TokenAccuracy
from keras_transformer.training.optimizers import Adam, WarmupSchedule

MAX_IN_MEMORY = 100_000_000  # bytes of text files; some 400 MB of memory
MAX_WARMUP = 2 / 3  # fraction of the updates
# Advice on `warmup_steps`: a fraction of the updates, and a minimum. The page "From your own text
# to a translator" gives the same.
USUAL_WARMUP, LEAST_WARMUP = 1 / 10, 100
SUBWORD_OPTIONS = "model_type", "character_coverage", "protected_symbols"
Tokenizers: TypeAlias = tuple[Tokenizer, Tokenizer]  # of source and target


def make_tokenizers(recipe, data_folder, files):
    """Writes the tokenizers of a recipe: those of `init_from`, of `vocabulary.files`, or new ones.

    Args:
        recipe: `Recipe`.
        data_folder: folder that the recipe's paths are relative to.
        files: paths to write, in one folder: one joint path, or source and target.
    """
    files[0].parent.mkdir(parents=True, exist_ok=True)
    settings = recipe.vocabulary
    run_settings = None  # of the vocabulary of `init_from`, if that run has a recipe
    init_from = recipe.training.init_from
    if init_from is not None:
        run = RunFolder.existing(init_from)
        if run.recipe_file.is_file():
            run_settings = run.recipe().vocabulary
            if settings.joint != run_settings.joint:
                raise ValueError(
                    f"`joint` of `vocabulary` must be {run_settings.joint}, as in {init_from!r}. "
                    f"Received: joint={settings.joint}"
                )
        tokenizers = [Tokenizer.load(file) for file in run.tokenizer_files(settings.joint)]
        if run.origin_file.is_file():  # its licence goes where the weights go
            shutil.copyfile(run.origin_file, files[0].parent / run.origin_file.name)
    elif settings.files is not None:
        tokenizers = [Tokenizer.load(data_folder / name) for name in settings.files]
    else:
        _train_tokenizers(recipe, data_folder, files)
        return
    place = "`files`" if init_from is None else f"`init_from`, {init_from!r}"
    settings.require_inherited(place, tokenizers, run_settings)
    for tokenizer, file in zip(tokenizers, files, strict=True):
        tokenizer.save(file)


def _train_tokenizers(recipe, data_folder, files):
    settings = recipe.vocabulary
    pairs = recipe.data.pairs("train", data_folder)
    # If the vocabulary is joint, there is one file for two sides.
    for side, (file, (kind, rule)) in enumerate(zip(files, settings.sides, strict=False)):
        if settings.joint:
            text = itertools.chain.from_iterable(pairs)
        else:
            text = (pair[side] for pair in pairs)
        options = {"path": file, "vocabulary_size": settings.size, "normalization": rule}
        if kind == "subwords":
            options |= {name: getattr(settings, name) for name in SUBWORD_OPTIONS}
            Tokenizer.train_on_lines(text, tags=recipe.data.tags(), **options)
        elif kind == "words":
            Tokenizer.words(text, **options)
        else:
            options |= {"symbols": settings.symbols or (), "graphemes": kind == "graphemes"}
            Tokenizer.characters(text, **options)


def find_tokenizers(recipe, data_folder, run, scratch):
    """Returns the tokenizers of a run; those of the recipe if the run has none, or another recipe.

    The latter are made in the folder `scratch`, as `train` makes them.
    """
    files = run.tokenizer_files(recipe.vocabulary.joint)
    is_complete = all(file.is_file() for file in (run.recipe_file, *files))
    if not is_complete or recipe.conflicts(run.recipe()):
        new_files = run.new_tokenizer_files(recipe.vocabulary.joint)
        files = [pathlib.Path(scratch, file.name) for file in new_files]
        make_tokenizers(recipe, data_folder, files)
    return load_tokenizers(files)


def load_tokenizers(files):
    """Returns source and target tokenizer. With one joint file, both are the same object."""
    tokenizers = [Tokenizer.load(file) for file in files]
    return tokenizers[0], tokenizers[-1]


def tag_sources(recipe, tokenizers):
    """Returns the tokenizers for a translator: they begin every source with the recipe's tag."""
    source, target = tokenizers
    tag = recipe.data.tag
    return (source if tag is None else source.with_tag(tag)), target


def most_source_tokens(recipe, config, tokenizers):
    """Returns the default of `max_source_tokens` for a run: `max_length`, if the model can read it.

    Args:
        recipe: `Recipe`.
        config: `TransformerConfig` of the model.
        tokenizers: those of source and target.
    """
    positions = learned_positions(config, int(bool(tokenizers[0].language_ids)))
    return min(recipe.data.max_length, positions or recipe.data.max_length)


def store_of(recipe, data_folder, run):
    """Returns the folder for the token stores of a recipe."""
    store = recipe.data.store
    return run.tokens if store is None else pathlib.Path(data_folder, store)


def pairs_of(recipe, data_folder, tokenizers, split):
    """Returns the pairs of a split; training pairs get placeholders, if the tokenizers have any.

    Raises a `ValueError` if the vocabulary lacks a tag, or the sources lack that of their target
    language, before the pairs are tokenised.
    """
    pairs, rate = recipe.data.pairs(split, data_folder), recipe.training.protected_text
    tag_ids(pairs, tokenizers[0])
    _require_tags(recipe, pairs, tokenizers[0], split)
    count = count_symbols(*(tokenizer.vocabulary for tokenizer in tokenizers))
    if split == "train" and count > 1 and rate:
        pairs.placeholders = count, rate, recipe.training.seed
    return pairs


def _require_tags(recipe, pairs, tokenizer, split):
    """Raises a `ValueError` if a corpus has a target language that has a tag, and no tag itself.

    Translators put the tag of `target_language` in front of a line; training reads lines as they
    are.
    """
    tags = [f">>{code}<<" for code in tokenizer.languages]
    for part in pairs.parts if tags else ():
        languages = part.languages or [None, recipe.search.get("target_language")]
        if languages[1] not in tokenizer.languages or not part.weight:
            continue
        first = next((source for source, _ in part.pairs if source.strip()), "")
        if first and split_tag(first)[0] not in tags:
            raise ValueError(
                f"The sources of `{split}` must begin with the tag of their target language, such "
                f"as {tags[0]}, because training puts none in front. Received: {first[:60]!r} in "
                f"{part.name}. Write the tags into the file."
            )


def splitting_languages(recipe, tokenizers, pairs):
    """Returns the languages of each part of the pairs; `[]` if no tokenizer splits by language."""
    if not any(map(splits_by_language, tokenizers)):
        return []
    codes = [recipe.search.get(name) for name in LANGUAGES]
    return ids_of_parts(tokenizers[0].language_ids, pairs.parts, codes)


def build_stream(recipe, data_folder, tokenizers, split, run, print_fn=lambda line: None):
    """Returns the `BatchStream` of a split of a recipe's data. Large splits have a token store.

    Only `"train"` is shuffled and filtered by `max_length` and `max_length_ratio`. From other
    splits, empty pairs and pairs longer than the learned positions are dropped.
    """
    data, training = recipe.data, recipe.training
    is_train = split == "train"
    pairs = pairs_of(recipe, data_folder, tokenizers, split)
    store = store_of(recipe, data_folder, run)
    if data.store is None and pairs.num_bytes <= MAX_IN_MEMORY and not store.exists():
        store = None
    else:
        print_fn(f"Tokens of `{split}`: {store}")
    # `search` names the languages to translate between: those of the pairs.
    languages = {name: recipe.search.get(name) for name in LANGUAGES}
    return BatchStream(
        pairs,
        *tokenizers,
        **(languages if tokenizers[0].language_ids else {}),
        store=store,
        batch_tokens=training.batch_tokens,
        shapes=training.shapes,
        max_length=data.max_length if is_train else None,
        max_length_ratio=data.max_length_ratio if is_train else None,
        shuffle=is_train,
        seed=training.seed,
        subword_regularization=training.subword_regularization if is_train else None,
        word_dropout=training.word_dropout if is_train else 0.0,
        config=config_of(recipe, tokenizers),
    )


def translation_sample(recipe, data_folder, tokenizers):
    """Returns the first validation pairs, and the codes of the languages of each.

    The codes are `None` if the tokenizers have no tokens of languages. Raises a `ValueError` if a
    source begins with the tag of another language than that of `search`: no epoch is trained then.
    """
    pairs = recipe.data.pairs("validation", data_folder)
    codes = [recipe.search.get(name) for name in LANGUAGES]
    sample, languages = [], []
    for pair in itertools.islice(pairs, recipe.training.translation_sample):
        sample.append(pair)
        languages.append(pairs.parts[pairs.part].languages or codes)
    if tokenizers[0].languages:
        tag_lines([source for source, _ in sample], codes[1], tokenizers[0].languages)
    return sample, languages if tokenizers[0].language_ids else None


def build_model(recipe, tokenizers, strategy, batches_per_epoch):
    """Returns the compiled model of a recipe, with random weights."""
    training, config = recipe.training, config_of(recipe, tokenizers)
    with strategy.scope():
        model = Transformer(config, dtype=training.precision)
        adapt(model, training)
        model.compile(
            optimizer=_optimizer(training, config, batches_per_epoch),
            loss=SmoothedCrossEntropy(training.label_smoothing, config.pad_token_id),
            weighted_metrics=[kind(config.pad_token_id) for kind in (TokenAccuracy, Perplexity)],
        )
        # Built here: if `fit` built it, loss scaling would give the variables other names.
        model.optimizer.build(model.trainable_variables)
    model.accumulation_steps = training.micro_batches(strategy.num_replicas_in_sync)
    model.r_drop = training.r_drop
    return model


def _optimizer(training, config, batches_per_epoch):
    schedule = _schedule(training, config.hidden_dim, batches_per_epoch)
    shared = {
        "weight_decay": training.weight_decay or None,
        "global_clipnorm": training.clip_norm,
        "use_ema": training.ema_momentum is not None,
        "ema_momentum": training.ema_momentum or 0.99,
    }
    if training.optimizer == "adafactor":
        # The rate of the schedule holds, below Keras's bound `update ** -0.5`: it is multiplied by
        # the larger of `epsilon_2` and the size of the weights, which is 0 for a new LoRA matrix.
        options = {"relative_step": False, "epsilon_2": 1.0}
        optimizer = keras.optimizers.Adafactor(schedule, **options, **shared)
    else:
        betas = {"beta_1": training.beta_1, "beta_2": training.beta_2}
        optimizer = Adam(schedule, epsilon=training.adam_epsilon, **betas, **shared)
    if training.weight_decay:
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer


def _schedule(training, width, batches_per_epoch):
    peak, warmup_steps = training.learning_rate, training.warmup_steps
    if peak is None:
        try:
            return WarmupSchedule(width, warmup_steps, minimum=training.min_learning_rate)
        except ValueError as error:
            said = str(error).replace("minimum", "min_learning_rate")  # the key of the recipe
            raise ValueError(f"{said}. Lower it, or set `learning_rate`.") from error
    if training.schedule == "inverse_sqrt":
        return WarmupSchedule.from_peak(width, peak, warmup_steps, training.min_learning_rate)
    decay_updates = training.decay_epochs * batches_per_epoch
    if decay_updates <= warmup_steps:
        raise ValueError(
            f"`warmup_steps` must be less than the updates of `decay_epochs`, {decay_updates}. "
            f"Received: warmup_steps={warmup_steps}, decay_epochs={training.decay_epochs}"
        )
    return keras.optimizers.schedules.CosineDecay(
        peak / warmup_steps,
        decay_steps=decay_updates - warmup_steps,
        alpha=training.min_learning_rate / peak,
        warmup_target=peak,
        warmup_steps=warmup_steps,
    )


def schedule_warnings(training, batches_per_epoch):
    """Yields a line for each length of the schedule that does not fit the updates of the run."""
    updates = training.epochs * batches_per_epoch
    longest = int(MAX_WARMUP * updates)
    if training.warmup_steps > longest:
        advised = min(max(int(USUAL_WARMUP * updates), LEAST_WARMUP), longest)
        advice = f"lower `warmup_steps` to about {advised:,}, or " if advised else ""
        yield (
            f"the warm-up takes {training.warmup_steps:,} of the {updates:,} updates "
            f"({training.epochs} epochs of {batches_per_epoch:,}): {advice}raise `epochs`"
        )
    decay_epochs = training.decay_epochs if training.schedule == "cosine" else training.epochs
    if decay_epochs > training.epochs:
        yield (
            f"the learning rate decays over {decay_epochs} epochs, and the run has "
            f"{training.epochs}: set `decay_epochs` to {training.epochs}"
        )


def config_of(recipe, tokenizers):
    """Returns the configuration of a recipe's model for the vocabularies of its tokenizers."""
    source, target = tokenizers
    return recipe.model_config(target.vocabulary_size, source.vocabulary_size)
