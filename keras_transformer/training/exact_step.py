"""The train and test step whose result does not depend on how a batch is cut up.

Gradient, loss and metrics are sums over tokens divided by the number of tokens of the whole update,
over all replicas, workers and micro-batches. Keras divides by each replica's own number, and clips
before it sums.
"""

import contextlib
import functools
import inspect

import keras

from keras_transformer.training.losses import refuse_probabilities

if keras.config.backend() == "tensorflow":
    import tensorflow as tf

    from keras_transformer.training.distribution import num_workers
    from keras_transformer.training.row_splitting import row_blocks, split_rows
    from keras_transformer.training.rows import (
        check_batch,
        number_of,
        rows_of,
        symbolic,
        without_filling,
    )
    from keras_transformer.training.token_loss import TokenLoss


class ExactTraining:
    """Mixin, in front of `keras.Model`: the same update on any number of devices.

    `gradient = sum over tokens(weight * d loss) / sum over tokens(weight)`, where the sums go over
    all replicas of all workers and all micro-batches. Then the gradient is clipped, if the
    optimizer has a `global_clipnorm`, and applied. The losses and metrics that `fit` and `evaluate`
    report are sums over all tokens of the epoch so far.

    The model has one output, logits `(B, T, V)`, and labels `(B, T)`. The compiled loss gives one
    value per token, as `SmoothedCrossEntropy` does, or Keras's
    `SparseCategoricalCrossentropy(from_logits=True)`. Its `reduction` says what the sum is divided
    by: the weights (`"mean_with_sample_weight"`), the labels that are not ignored (Keras's default,
    `"sum_over_batch_size"`, and `"mean"`), or nothing (`"sum"`). `loss_weights` multiplies it.

    Regularizers, activity regularizers and `add_loss` count once per update. What a layer adds
    during its call is taken for a mean over the rows of the batch, such as Keras's activity
    regularizers are: each part of a batch weighs by its rows.

    A `compute_loss` of a subclass is used, if one device takes the whole batch at once.

    Attributes:
        accumulation_steps: int. Micro-batches that each replica's rows are cut into, one after the
            other, to save memory. The update is the same. Defaults to `1`.

    Raises:
        ValueError: when training begins, if the optimizer clips or accumulates by itself in a way
            that depends on the number of devices, the loss gives no value per token, `class_weight`
            is given, or `steps_per_execution` or `jit_compile` with more than one device (the
            latter also with micro-batches).
    """

    _accumulation_steps = 1

    @property
    def accumulation_steps(self):
        return self._accumulation_steps

    @accumulation_steps.setter
    def accumulation_steps(self, value):
        if not isinstance(value, int) or value < 1:
            raise ValueError(
                "`accumulation_steps` must be an int of at least 1. "
                f"Received: accumulation_steps={value!r}"
            )
        self._accumulation_steps = value
        self.train_function = None  # to be traced anew

    # === What Keras calls ===

    @functools.wraps(keras.Model.fit)
    def fit(self, *args, **kwargs):
        arguments = inspect.signature(super().fit).bind(*args, **kwargs).arguments
        _refuse_class_weight(arguments.pop("class_weight", None))
        for name in ("x", "validation_data"):
            arguments[name] = self._dealt(arguments.get(name))
        with self._traced_anew_after_errors():
            return super().fit(**arguments)

    @functools.wraps(keras.Model.evaluate)
    def evaluate(self, x=None, *args, **kwargs):
        with self._traced_anew_after_errors():
            return super().evaluate(self._dealt(x), *args, **kwargs)

    @functools.wraps(keras.Model.train_on_batch)
    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, return_dict=False):
        _refuse_class_weight(class_weight)
        return self._on_batch("train", (x, y, sample_weight), return_dict)

    @functools.wraps(keras.Model.test_on_batch)
    def test_on_batch(self, x, y=None, sample_weight=None, return_dict=False):
        return self._on_batch("test", (x, y, sample_weight), return_dict)

    @functools.wraps(keras.Model.predict_on_batch)
    def predict_on_batch(self, x):
        if self._replicas == 1:
            return super().predict_on_batch(x)
        # Keras gives each replica the whole batch, and returns the rows of all.
        return self.predict(x, batch_size=keras.tree.flatten(x)[0].shape[0], verbose=0)

    def make_train_function(self, force=False):
        _check_optimizer(self.optimizer)
        return super().make_train_function(force)

    def train_step(self, data):
        rows = rows_of(data)
        divisors = self._divisors(rows)
        gradients, loss = self._gradients(rows, divisors)
        gradients, loss = _sum_over_replicas((gradients, loss))
        self._track_loss(loss, divisors)
        gradients, norm = self._clipped(gradients)
        if self._replicas > 1:
            # The optimizer sums over the replicas, which all hold the same gradient.
            gradients = [gradient / self._replicas for gradient in gradients]
        self.optimizer.apply(gradients, self.trainable_variables)
        return self._logs(gradient_norm=norm)

    def test_step(self, data):
        rows = rows_of(data)
        divisors = self._divisors(rows)
        loss = self._loss_share(rows, divisors, training=False)
        self._track_loss(_sum_over_replicas(loss), divisors)
        return self._logs()

    def _resolve_auto_jit_compile(self):
        # Batches have many shapes, and XLA would compile each anew. `jit_compile=True` still does.
        return False

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Checks what is compiled and, under a strategy, builds optimizer and metrics from shapes.

        Keras takes a batch of the data to know its shapes, which a generator then has lost.
        """
        self._check_compiled()
        if data_batch is None:
            spec = iterator._get_iterator().element_spec
            data_batch = keras.tree.map_structure(symbolic, spec)
        if self._steps_are_ours:
            check_batch(data_batch)
        if self._distribute_strategy is not None:
            with self.distribute_strategy.scope():
                is_tuple = isinstance(data_batch, tuple)
                self._symbolic_build(data_batch=data_batch[:3] if is_tuple else data_batch)

    # === The parts of a step ===

    @contextlib.contextmanager
    def _traced_anew_after_errors(self):
        """A graph whose first trace failed cannot create what it needs in another one."""
        try:
            yield
        except BaseException:
            self.train_function = self.test_function = None
            raise

    def _on_batch(self, kind, batch, return_dict):
        """`train_on_batch` or `test_on_batch`."""
        with self._traced_anew_after_errors():
            if self._replicas == 1:
                return getattr(super(), f"{kind}_on_batch")(*batch, return_dict=return_dict)
            return self._on_dealt_batch(kind, batch, return_dict)

    def _on_dealt_batch(self, kind, batch, return_dict):
        """A step on one batch, dealt to the replicas: Keras gives the whole of it to each."""
        given = batch if batch[2] is not None else batch[:2]
        iterator = iter(self._dealt(tf.data.Dataset.from_tensors(given)))
        self._maybe_symbolic_build(data_batch=batch)
        getattr(self, f"make_{kind}_function")()
        self.reset_metrics()
        logs = getattr(self, f"{kind}_function")(iterator)
        logs = {name: float(tf.reshape(value, [-1])[0]) for name, value in sorted(logs.items())}
        return logs if return_dict else self._flatten_metrics_in_order(logs)

    @property
    def _num_parts(self):
        """How many parts a batch is cut into."""
        return self._replicas * self.accumulation_steps

    @property
    def _replicas(self):
        return self.distribute_strategy.num_replicas_in_sync

    @property
    def _steps_are_ours(self):
        """Whether no subclass has steps of its own, which unpack what Keras's steps unpack."""
        steps = type(self).train_step, type(self).test_step
        return steps == (ExactTraining.train_step, ExactTraining.test_step)

    @property
    def _token_loss(self):
        if self._compile_loss is None:
            return TokenLoss(None)
        return TokenLoss(self.loss, self._compile_loss._user_loss_weights)

    def _check_compiled(self):
        """Refuses what the steps cannot do, whatever data they are given."""
        _ = self._token_loss
        replicas, parts = self._replicas, self._num_parts
        if replicas > 1 and self.steps_per_execution > 1:
            raise ValueError(
                "`steps_per_execution` works on one device only: compile with 1. Received: "
                f"steps_per_execution={self.steps_per_execution} under {replicas} replicas"
            )
        if parts > 1 and self.jit_compile:
            raise ValueError(
                "`jit_compile` needs a batch that one device takes at once, since XLA must know "
                "how many rows each part of a batch has: compile with False. Received: "
                f"jit_compile=True under {replicas} replicas, "
                f"accumulation_steps={self.accumulation_steps}"
            )
        if parts > 1 and self._has_own_loss:
            raise ValueError(
                "`compute_loss` gives one number, which cannot be divided among replicas and "
                "micro-batches. Compile a loss with one value per token, or train on "
                f"one device without micro-batches. Received: {type(self).__name__}.compute_loss"
            )

    @property
    def _has_own_loss(self):
        return type(self).compute_loss is not keras.Model.compute_loss

    def _dealt(self, data):
        """Under several replicas, a dataset whose batches are dealt to them row by row."""
        strategy = self.distribute_strategy
        if isinstance(data, tf.data.Dataset):
            return split_rows(data, strategy, marked=self._steps_are_ours)
        is_distributed = data is None or isinstance(data, tf.distribute.DistributedDataset)
        if num_workers(strategy) > 1 and not is_distributed:
            raise ValueError(
                "Several workers train from a `tf.data.Dataset` that yields the same batches on "
                f"each of them. Received: {type(data).__name__}"
            )
        return data

    def _divisors(self, rows):
        """What loss and additional losses of the whole update are divided by: tokens and rows."""
        loss = self._token_loss
        of_loss = loss.divisor(rows.y, rows.sample_weight, rows.is_real, self._replicas)
        return _sum_over_replicas((of_loss, number_of(rows)))

    def _loss_share(self, rows, divisors, training):
        """What these rows add to the loss of the update; metrics are updated."""
        if self._num_parts > 1:
            rows = without_filling(rows)
        x, y, sample_weight, _ = rows
        logits = self(x, training=training)
        if getattr(logits, "_keras_mask", None) is not None:
            raise ValueError(
                "The model's output carries a Keras mask, as `mask_zero=True` makes one, and the "
                "exact step does not read it. Hand masks to the layers as arguments, and leave "
                "padding out of the loss by `ignore_class` or `sample_weight`. "
                f"Received: {type(self).__name__}"
            )
        self._update_metrics(rows, logits)
        if self._has_own_loss:
            return tf.cast(self._compute_loss(x, y, logits, sample_weight, training), tf.float32)
        loss, divisor, num_rows = self._token_loss, *divisors
        shares = [
            tf.reduce_sum(tf.cast(additional, tf.float32)) * number_of(rows) / num_rows
            for additional in self.losses
        ]
        if loss:
            weights = loss.weights(y, sample_weight)
            total = tf.reduce_sum(loss.values(y, logits, weights) * weights)
            shares.append(tf.math.divide_no_nan(total, divisor) * loss.factor)
        if not shares:
            raise ValueError("There is no loss: give `compile` one. Received: loss=None")
        return tf.add_n(shares)

    def _update_metrics(self, rows, logits):
        x, y, sample_weight, is_real = rows
        if self._num_parts > 1:  # metrics might count what fills a part up
            x, y, logits, sample_weight = keras.tree.map_structure(
                lambda tensor: tf.boolean_mask(tensor, is_real), (x, y, logits, sample_weight)
            )
        self.compute_metrics(x, y, logits, sample_weight=sample_weight)

    def _gradients(self, rows, divisors):
        """This replica's share of gradient and loss, summed over its micro-batches."""

        def micro_batch(rows):
            with tf.GradientTape() as tape:
                loss = self._loss_share(rows, divisors, training=True)
                scaled = self.optimizer.scale_loss(loss)
            gradients = tape.gradient(
                scaled, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            return [tf.convert_to_tensor(gradient) for gradient in gradients], loss

        variables = [variable.value for variable in self.trainable_variables]
        if self.accumulation_steps == 1:
            return micro_batch(rows)
        slices = keras.tree.map_structure(
            lambda tensor: row_blocks(tensor, self.accumulation_steps), rows
        )
        zeros = [tf.zeros(v.shape, v.dtype) for v in variables], tf.zeros(())

        def add_micro_batch(index, sums):
            parts = micro_batch(keras.tree.map_structure(lambda part: part[index], slices))
            return index + 1, keras.tree.map_structure(tf.add, sums, parts)

        _, sums = tf.while_loop(
            lambda index, sums: index < self.accumulation_steps,
            add_micro_batch,
            (0, zeros),
            maximum_iterations=self.accumulation_steps,
        )
        return sums

    def _clipped(self, gradients):
        """The gradients as the optimizer is to have them, and the norm before clipping."""
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        # With float16 the gradients are a multiple of the true ones, until the optimizer divides.
        norm = tf.linalg.global_norm(gradients) / self.optimizer.scale_loss(1.0)
        if optimizer.global_clipnorm:
            factor = optimizer.global_clipnorm / tf.maximum(norm, optimizer.global_clipnorm)
            gradients = [gradient * factor for gradient in gradients]
        return gradients, norm

    def _track_loss(self, loss, divisors):
        # Metric variables are summed over replicas when read, so each adds 1/N of the global sum.
        self._loss_tracker.update_state(loss, sample_weight=divisors[0] / self._replicas)

    def _logs(self, **more):
        """Loss and metrics of the epoch so far, over all replicas."""
        metrics = [variable for metric in self.metrics for variable in metric.variables]
        sums = _sum_over_replicas([variable.value + 0 for variable in metrics])
        with keras.StatelessScope(state_mapping=zip(metrics, sums, strict=True)):
            logs = self.get_metrics_result() | more
        if num_workers(self.distribute_strategy) > 1:
            # Keras takes the mean over the first axis there, which a scalar does not have.
            logs = {name: tf.reshape(value, [1]) for name, value in logs.items()}
        return logs


class StandardTraining:
    """The step of Keras, for backends without `tf.distribute`: exact on one device as it is."""

    @property
    def accumulation_steps(self):
        return 1

    @accumulation_steps.setter
    def accumulation_steps(self, value):
        if value != 1:
            raise ValueError(
                "`accumulation_steps` needs the TensorFlow backend. Received: "
                f"accumulation_steps={value!r}, backend {keras.config.backend()!r}"
            )

    @functools.wraps(keras.Model.fit)
    def fit(self, *args, **kwargs):
        arguments = inspect.signature(super().fit).bind(*args, **kwargs).arguments
        _refuse_class_weight(arguments.get("class_weight"))
        refuse_probabilities(getattr(self, "loss", None))
        return super().fit(*args, **kwargs)

    @functools.wraps(keras.Model.evaluate)
    def evaluate(self, *args, **kwargs):
        refuse_probabilities(getattr(self, "loss", None))
        return super().evaluate(*args, **kwargs)

    @functools.wraps(keras.Model.train_on_batch)
    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, return_dict=False):
        _refuse_class_weight(class_weight)
        refuse_probabilities(getattr(self, "loss", None))
        return super().train_on_batch(x, y, sample_weight, return_dict=return_dict)


# The mixin of this backend.
TrainingStep = ExactTraining if keras.config.backend() == "tensorflow" else StandardTraining


def _sum_over_replicas(values):
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)


def _refuse_class_weight(class_weight):
    if class_weight is not None:
        raise ValueError(
            "`class_weight` weighs one class per row, and here each token has one. Give "
            f"`sample_weight`, of shape (B, T). Received: class_weight={class_weight!r}"
        )


def _check_optimizer(optimizer):
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    instead = {
        "clipnorm": "clips each weight's gradient before the replicas' are summed",
        "clipvalue": "clips each replica's gradient before they are summed",
        "gradient_accumulation_steps": "weighs micro-batches by their number, not by their tokens",
    }
    for name, reason in instead.items():
        if getattr(optimizer, name, None):
            better = "`global_clipnorm`" if "clip" in name else "the model's `accumulation_steps`"
            raise ValueError(
                f"The optimizer's `{name}` {reason}, so that the update would depend on the "
                f"number of devices. Use {better} instead. "
                f"Received: {name}={getattr(optimizer, name)!r}"
            )
