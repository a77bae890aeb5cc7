"""The train and test step whose result does not depend on how a batch is split.

Gradient, loss and metrics are sums over tokens divided by the number of tokens of the whole update,
over all replicas, workers and micro-batches. Keras, in contrast, divides by the number of tokens of
each replica, and clips before the all-reduce.
"""

from typing import Any

import keras
import tensorflow as tf

from keras_transformer.training.distribution import num_workers
from keras_transformer.training.fused_step import FusedTraining
from keras_transformer.training.optimizers import without_loss_scaling
from keras_transformer.training.row_splitting import (
    select_rows,
    shard_rows,
    split_rows,
    symbolic_tensor,
    to_rows,
    without_padding,
)
from keras_transformer.training.rows import check_shapes, num_real


class ExactTraining(FusedTraining):
    """Mixin to list before `keras.Model`: makes the same update on any number of devices.

    `gradient = sum over tokens(weight * d loss) / sum over tokens(weight)`, where the sums go over
    all replicas of all workers and all micro-batches. Then the gradient is clipped, if the
    optimizer has a `clipnorm`, `clipvalue` or `global_clipnorm`, and applied. The losses and
    metrics that `fit` and `evaluate` report are means over all tokens of the epoch so far.

    The model has one output, logits `(B, T, V)`, and labels `(B, T)`. The compiled loss must return
    one value per token. `SmoothedCrossEntropy` does, and so does Keras's
    `SparseCategoricalCrossentropy(from_logits=True)`. Its `reduction` selects the divisor:

    - `"mean_with_sample_weight"`: the sum of the weights;
    - `"sum_over_batch_size"` (Keras's default) or `"mean"`: the number of labels that are not
      ignored;
    - `"sum"`: 1.

    `loss_weights` is a factor of the loss.

    Regularizers, activity regularizers and `add_loss` count once per update. A loss that a layer
    adds during its call must be a mean over rows, like Keras's activity regularizers: the loss of
    each part of a batch is weighted by the number of rows in the part.

    A subclass may override `compute_loss` only for one device without micro-batches.

    Attributes:
        accumulation_steps: number of micro-batches that each replica's rows are split into, to save
            memory. They are processed in sequence, and the update is the same. Defaults to `1`.
        fused_loss: whether loss and metrics are computed without the logits `(B, T, V)` where
            possible, see `FusedTraining`. Defaults to `True`.

    Raises:
        ValueError: from `fit` and the other training methods:

            - `class_weight` is given, or the loss does not return one value per token;
            - the optimizer has `gradient_accumulation_steps`;
            - with several replicas or micro-batches, `jit_compile` is set or `compute_loss` is
              overridden.
    """

    test_function: Any  # for the type checker; Keras creates it

    # === Called by Keras ===

    def predict_on_batch(self, x: Any) -> Any:
        """Returns the outputs for a batch; see `keras.Model.predict_on_batch`."""
        if self._replicas == 1:
            return super().predict_on_batch(x)
        # Keras runs the whole batch on every replica and returns every copy, so use `predict`.
        return self.predict(x, batch_size=keras.tree.flatten(x)[0].shape[0], verbose=0)

    def make_train_function(self, force: bool = False) -> None:
        if self.built and not self.optimizer.built:
            # A function that creates variables is traced twice: the first update would come late.
            with self.distribute_strategy.scope():
                self.optimizer.build(self.trainable_variables)
        if self._replicas == 1:
            super().make_train_function(force)
        elif self.train_function is None or force:
            self.train_function = self._on_replicas(self.train_step)

    def make_test_function(self, force: bool = False) -> None:
        if self._replicas == 1:
            super().make_test_function(force)
        elif self.test_function is None or force:
            self.test_function = self._on_replicas(self.test_step)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        # Without the dependency, the counters of optimizer and dropout advance once more when the
        # dataset ends: they do not read the batch, so TensorFlow may run them before it.
        with tf.control_dependencies(_tensors(data)):
            return self._train_step(to_rows(data))

    def _train_step(self, rows):
        divisors = self._divisors(rows)
        gradients, loss = _sum_over_replicas(self._gradients(rows, divisors))
        self._track_loss(loss, divisors)
        # With float16, the gradients are still multiplied by the loss scale here.
        norm = tf.linalg.global_norm(gradients) / self.optimizer.scale_loss(1.0)
        if self._replicas > 1:
            # All replicas hold the same gradient and the optimizer sums it, so divide by N. The
            # optimizer would clip the parts, so clip before.
            gradients = [each / self._replicas for each in self._clip(gradients)]
        self.optimizer.apply(gradients, self.trainable_variables)
        return self._logs() | {"gradient_norm": norm}

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        rows = to_rows(data)
        divisors = self._divisors(rows)
        loss = self._loss_share(rows, divisors, training=False)
        self._track_loss(_sum_over_replicas(loss), divisors)
        return self._logs()

    def _resolve_auto_jit_compile(self):
        # XLA would compile each of the many batch shapes. `jit_compile=True` still enables it.
        return False

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Checks the compile arguments and, under a strategy, builds optimizer and metrics.

        Keras would read one batch to learn the shapes, and a generator cannot yield it again. Here
        the shapes come from the dataset's spec.
        """
        self._check_compiled()
        if data_batch is None:
            spec = iterator._get_iterator().element_spec
            data_batch = keras.tree.map_structure(symbolic_tensor, spec)
        if self._has_default_steps:
            check_shapes(data_batch)
        if self._distribute_strategy is not None:
            with self.distribute_strategy.scope():
                is_tuple = isinstance(data_batch, tuple)
                self._symbolic_build(data_batch=data_batch[:3] if is_tuple else data_batch)

    # === Parts of a step ===

    def _call_keras(self, method, arguments):
        try:
            if method.endswith("on_batch") and self._replicas > 1:
                return self._run_on_batch(method, **arguments)
            for name in {"x", "validation_data"} & arguments.keys():
                arguments[name] = self._split(arguments[name])
            return super()._call_keras(method, arguments)
        except BaseException:
            # A `tf.function` whose first trace failed cannot create variables in a second one: drop
            # both functions, so that the next call makes new ones.
            self.train_function = self.test_function = None
            raise

    def _run_on_batch(self, method, x, y=None, sample_weight=None, return_dict=False):
        """Runs a step on a batch split over the replicas; Keras would copy the batch to each."""
        batch = (x, y) if sample_weight is None else (x, y, sample_weight)
        iterator = iter(self._split(tf.data.Dataset.from_tensors(batch)))
        self._maybe_symbolic_build(data_batch=(x, y, sample_weight))
        kind = method.removesuffix("_on_batch")
        getattr(self, f"make_{kind}_function")()
        self.reset_metrics()
        logs = getattr(self, f"{kind}_function")(iterator)
        logs = {name: float(value) for name, value in sorted(logs.items())}
        return logs if return_dict else self._flatten_metrics_in_order(logs)

    def _on_replicas(self, step):
        """Returns the function that runs `steps_per_execution` steps; the one of Keras fails here.

        Under replicas, Keras cannot run several steps, and under workers it averages the logs over
        an axis that they do not have.
        """
        strategy = self.distribute_strategy

        def one_step(iterator):
            logs = strategy.run(step, args=(iterator.get_next(),))
            return keras.tree.map_structure(
                lambda value: tf.reduce_mean(strategy.experimental_local_results(value), 0), logs
            )

        if not self.run_eagerly:
            one_step = tf.function(one_step, reduce_retracing=True, autograph=False)

        def steps(iterator):
            logs = one_step(iterator)
            for _ in range(1, self.steps_per_execution):
                try:
                    logs = one_step(iterator)
                except tf.errors.OutOfRangeError:
                    break  # the next call raises it again, which ends the epoch
            return logs

        return steps

    @property
    def _num_parts(self):
        """Number of parts that a batch is split into."""
        return self._replicas * self.accumulation_steps

    @property
    def _replicas(self):
        return self.distribute_strategy.num_replicas_in_sync

    @property
    def _has_default_steps(self):
        """Whether both steps are those of this class; overriding ones expect no `is_real`."""
        steps = type(self).train_step, type(self).test_step
        return steps == (ExactTraining.train_step, ExactTraining.test_step)

    def _check_compiled(self):
        """Raises for compile arguments that the steps do not support."""
        super()._check_compiled()
        problem = None
        if self._num_parts > 1 and self.jit_compile:
            problem = "`jit_compile` must be False, because XLA needs static numbers of rows"
        elif self._num_parts > 1 and self._overrides_compute_loss:
            problem = f"`{type(self).__name__}.compute_loss` returns a scalar that cannot be split"
        if problem:
            raise ValueError(
                f"With several replicas or micro-batches, {problem}. Received: {self._replicas} "
                f"replicas, accumulation_steps={self.accumulation_steps}"
            )

    def _split(self, data):
        """With several replicas, splits the batches of a dataset by rows."""
        strategy = self.distribute_strategy
        if isinstance(data, tf.data.Dataset):
            return split_rows(data, strategy, with_is_real=self._has_default_steps)
        is_distributed = data is None or isinstance(data, tf.distribute.DistributedDataset)
        if num_workers(strategy) > 1 and not is_distributed:
            raise ValueError(
                "With several workers, the data must be a `tf.data.Dataset` that yields the same "
                f"batches on each worker. Received: {type(data).__name__}"
            )
        return data

    def _divisors(self, rows):
        """Divisors of the whole update: tokens for the loss, rows for the additional losses."""
        tokens = self._token_loss.divisor(rows, self._replicas)
        return _sum_over_replicas((tokens, num_real(rows)))

    def _loss_share(self, rows, divisors, training):
        if self._num_parts > 1:
            rows = without_padding(rows)
        return super()._loss_share(rows, divisors, training)

    def _reason_for_logits(self):
        if self.jit_compile:
            return "`jit_compile` is set, and XLA needs a static number of tokens"
        return super()._reason_for_logits()

    def _select_tokens(self, tensors, counted):
        return [tf.boolean_mask(each, counted) for each in (*tensors, counted)]

    def _check_labels(self, labels, num_classes):
        lowest, highest = tf.reduce_min(labels), tf.reduce_max(labels)
        rule = f"A label must be a token id of the model, 0 to {num_classes - 1}. Received: from"
        is_valid = (lowest >= 0) & (highest < num_classes)
        tf.debugging.Assert(is_valid, [rule, lowest, "to", highest])

    def _update_metrics(self, rows, logits):
        values = (rows.x, rows.y, logits, rows.sample_weight)
        if self._num_parts > 1:  # unweighted metrics would count the padding
            values = select_rows(values, rows.is_real)
        x, y, logits, sample_weight = values
        self.compute_metrics(x, y, logits, sample_weight=sample_weight)

    def _gradients(self, rows, divisors):
        """Returns this replica's share of gradient and loss, summed over its micro-batches."""
        variables = [variable.value for variable in self.trainable_variables]

        def micro_batch(rows):
            with tf.GradientTape() as tape:
                loss = self._loss_share(rows, divisors, training=True)
                scaled = self.optimizer.scale_loss(loss)
            gradients = tape.gradient(
                scaled, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            return [tf.convert_to_tensor(gradient) for gradient in gradients], loss

        steps = self.accumulation_steps
        if steps == 1:
            return micro_batch(rows)
        shards = keras.tree.map_structure(lambda tensor: shard_rows(tensor, steps), rows)
        zeros = [tf.zeros(v.shape, v.dtype) for v in variables], tf.zeros(())

        def add_micro_batch(index, sums):
            parts = micro_batch(keras.tree.map_structure(lambda shard: shard[index], shards))
            return index + 1, keras.tree.map_structure(tf.add, sums, parts)

        _, sums = tf.while_loop(
            lambda index, _: index < steps, add_micro_batch, (0, zeros), maximum_iterations=steps
        )
        return sums

    def _clip(self, gradients):
        """Clips the gradients as the optimizer does on one device."""
        optimizer = without_loss_scaling(self.optimizer)
        scale = self.optimizer.scale_loss(1.0)  # other than 1 with float16
        if optimizer.clipnorm:
            limit = optimizer.clipnorm * scale
            return [tf.clip_by_norm(gradient, limit) for gradient in gradients]
        if optimizer.global_clipnorm:
            return tf.clip_by_global_norm(gradients, optimizer.global_clipnorm * scale)[0]
        if optimizer.clipvalue:
            limit = optimizer.clipvalue * scale
            clipped = [tf.clip_by_value(gradient, -limit, limit) for gradient in gradients]
            # Loss scaling must see an overflow; the two norms turn it into NaN.
            pairs = zip(gradients, clipped, strict=True)
            return [tf.where(tf.math.is_finite(old), new, old) for old, new in pairs]
        return gradients

    def _track_loss(self, loss, divisors):
        # Metric variables are summed over replicas when read, so each adds 1/N of the global sum.
        self._loss_tracker.update_state(loss, sample_weight=divisors[0] / self._replicas)

    def _logs(self):
        """Loss and metrics of the epoch so far, over all replicas."""
        metrics = [variable for metric in self.metrics for variable in metric.variables]
        sums = _sum_over_replicas([variable.value + 0 for variable in metrics])
        with keras.StatelessScope(state_mapping=zip(metrics, sums, strict=True)):
            return self.get_metrics_result()


def _tensors(data):
    return [tensor for tensor in keras.tree.flatten(data) if tf.is_tensor(tensor)]


def _sum_over_replicas(values):
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)
