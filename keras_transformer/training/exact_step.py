"""The train and test step whose result does not depend on how a batch is cut up.

Gradient, loss and metrics are sums over tokens divided by the number of tokens of the whole update,
over all replicas, workers and micro-batches. Keras divides by each replica's own number, and clips
before it sums.
"""

import inspect

import keras

from keras_transformer.training.token_weights import token_weights

if keras.config.backend() == "tensorflow":
    import tensorflow as tf

    from keras_transformer.training.distribution import deal_rows, num_workers, row_blocks


class ExactTraining:
    """Mixin, in front of `keras.Model`: the same update on any number of devices.

    `gradient = sum over tokens(weight * d loss) / sum over tokens(weight)`, where the sums go over
    all replicas of all workers and all micro-batches. Then the gradient is clipped, if the
    optimizer has a `global_clipnorm`, and applied. The losses and metrics that `fit` and `evaluate`
    report are sums over all tokens of the epoch so far.

    The model has one output, logits `(B, T, V)`, and labels `(B, T)`. The compiled loss gives one
    value per token, as `SmoothedCrossEntropy` does, or Keras's
    `SparseCategoricalCrossentropy(from_logits=True)`.

    Attributes:
        accumulation_steps: int. Micro-batches that each replica's rows are cut into, one after the
            other, to save memory. The update is the same. Defaults to `1`.

    Raises:
        ValueError: when training begins, if the optimizer clips or accumulates by itself in a way
            that depends on the number of devices, or the loss gives no value per token.
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

    def fit(self, x=None, *args, **kwargs):
        arguments = inspect.signature(super().fit).bind(self._dealt(x), *args, **kwargs).arguments
        if arguments.get("validation_data") is not None:
            arguments["validation_data"] = self._dealt(arguments["validation_data"])
        return super().fit(**arguments)

    def evaluate(self, x=None, *args, **kwargs):
        return super().evaluate(self._dealt(x), *args, **kwargs)

    def make_train_function(self, force=False):
        _check_optimizer(self.optimizer)
        return super().make_train_function(force)

    def train_step(self, data):
        x, y, sample_weight, weights = self._weighed(data)
        num_tokens = _sum_over_replicas(tf.reduce_sum(weights))
        gradients, loss = self._gradients(x, y, sample_weight, weights, num_tokens)
        gradients, loss = _sum_over_replicas((gradients, loss))
        self._track_loss(loss, num_tokens)
        gradients, norm = self._clipped(gradients)
        replicas = self.distribute_strategy.num_replicas_in_sync
        if replicas > 1:
            # The optimizer sums over the replicas, which all hold the same gradient.
            gradients = [gradient / replicas for gradient in gradients]
        self.optimizer.apply(gradients, self.trainable_variables)
        return self._logs(gradient_norm=norm)

    def test_step(self, data):
        x, y, sample_weight, weights = self._weighed(data)
        num_tokens = _sum_over_replicas(tf.reduce_sum(weights))
        loss = self._loss_share(x, y, sample_weight, weights, num_tokens, training=False)
        self._track_loss(_sum_over_replicas(loss), num_tokens)
        return self._logs()

    def _resolve_auto_jit_compile(self):
        # Batches have many shapes, and XLA would compile each anew. `jit_compile=True` still does.
        return False

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Keras averages the batch over the replicas first, which fails on several workers and
        # where replicas have rows of different lengths. Any replica's shapes do.
        if data_batch is None and self.distribute_strategy.num_replicas_in_sync > 1:
            _, _, batches = next(iter(iterator))
            local = self.distribute_strategy.experimental_local_results
            data_batch = keras.tree.map_structure(lambda value: local(value)[0], next(batches))
            iterator = None
        super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)

    # === The parts of a step ===

    def _dealt(self, data):
        """Under several replicas, a dataset whose batches are dealt to them row by row."""
        strategy = self.distribute_strategy
        if isinstance(data, tf.data.Dataset):
            return deal_rows(data, strategy)
        is_distributed = data is None or isinstance(data, tf.distribute.DistributedDataset)
        if num_workers(strategy) > 1 and not is_distributed:
            raise ValueError(
                "Several workers train from a `tf.data.Dataset` that yields the same batches on "
                f"each of them. Received: {type(data).__name__}"
            )
        return data

    def _weighed(self, data):
        """Inputs, labels, the weights given for metrics, and those of tokens in the loss."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if sample_weight is None:
            sample_weight = tf.ones(tf.shape(y))
        weights = token_weights(y, getattr(self.loss, "ignore_class", None), sample_weight)
        return x, y, sample_weight, weights

    def _loss_share(self, x, y, sample_weight, weights, num_tokens, training):
        """What these rows add to the mean loss per token of the update; metrics are updated."""
        logits = self(x, training=training)
        losses = _token_losses(self.loss, y, logits)
        self._update_metrics(x, y, logits, sample_weight, weights)
        return tf.math.divide_no_nan(tf.reduce_sum(losses * weights), num_tokens)

    def _update_metrics(self, x, y, logits, sample_weight, weights):
        is_cut = self.distribute_strategy.num_replicas_in_sync * self.accumulation_steps > 1
        if is_cut and len(self.metrics) > 1:
            # Rows that fill a batch up are not shown to metrics, which might count them.
            rows = tf.reduce_any(weights > 0, axis=-1)
            x, y, logits, sample_weight = keras.tree.map_structure(
                lambda tensor: tf.boolean_mask(tensor, rows), (x, y, logits, sample_weight)
            )
        self.compute_metrics(x, y, logits, sample_weight=sample_weight)

    def _gradients(self, x, y, sample_weight, weights, num_tokens):
        """This replica's share of gradient and loss, summed over its micro-batches."""

        def micro_batch(rows):
            with tf.GradientTape() as tape:
                loss = self._loss_share(*rows, num_tokens, training=True)
                scaled = self.optimizer.scale_loss(loss)
            gradients = tape.gradient(
                scaled, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            return [tf.convert_to_tensor(gradient) for gradient in gradients], loss

        variables = [variable.value for variable in self.trainable_variables]
        if self.accumulation_steps == 1:
            return micro_batch((x, y, sample_weight, weights))
        slices = keras.tree.map_structure(
            lambda rows: row_blocks(rows, self.accumulation_steps), (x, y, sample_weight, weights)
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

    def _track_loss(self, loss, num_tokens):
        # Each replica knows the sum over all: it enters its part of it, and the parts are summed.
        replicas = self.distribute_strategy.num_replicas_in_sync
        self._loss_tracker.update_state(loss, sample_weight=num_tokens / replicas)

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


# The mixin of this backend.
TrainingStep = ExactTraining if keras.config.backend() == "tensorflow" else StandardTraining


def _sum_over_replicas(values):
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)


def _token_losses(loss, labels, logits):
    """float32 `(B, T)` losses by whatever loss was compiled."""
    if isinstance(loss, str) or not getattr(loss, "from_logits", True):
        raise ValueError(
            "The model gives logits: use `SmoothedCrossEntropy()`, or a loss of Keras with "
            f"`from_logits=True`. Received: loss={loss!r}"
        )
    losses = loss.call(labels, logits) if isinstance(loss, keras.losses.Loss) else None
    if losses is None and callable(loss):
        losses = loss(labels, logits)
    if losses is None or losses.shape.rank != 2:
        raise ValueError(
            "The loss must give one value per token, shape (B, T), to be divided by the number of "
            "tokens of all devices; `SmoothedCrossEntropy` does. "
            f"Received: loss={loss!r}, of shape {getattr(losses, 'shape', None)}"
        )
    return tf.cast(losses, tf.float32)


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
