"""Skips the batches of an epoch that were trained before a resume."""

import keras


def skip_batches(model, number):
    """Makes `fit` count the next batches of a model without training on them.

    `fit` then calls the callbacks with empty logs.

    Args:
        model: compiled model, whose train function is made.
        number: number of batches.

    Returns:
        a function that ends the skipping; it does nothing if the skipping has ended.
    """
    train_function = model.train_function

    def skip(*arguments):
        nonlocal number
        if number <= 0:
            stop()
            return train_function(*arguments)
        number -= model.steps_per_execution
        # On JAX, the train function also gets and returns the training state.
        return ({}, arguments[0]) if keras.backend.backend() == "jax" else {}

    def stop():
        if model.train_function is skip:
            model.train_function = train_function

    model.train_function = skip
    return stop
