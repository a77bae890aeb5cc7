"""The learning rate against equation (3) of the paper, and the settings of Adam."""

import json

import keras
import numpy as np
import pytest

from keras_transformer import TransformerConfig, WarmupSchedule, paper_optimizer
from tests.builders import to_numpy


def equation_3(step, hidden_dim, warmup_steps):
    """The formula in the paper, with steps counted from 1."""
    return hidden_dim**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


@pytest.mark.parametrize(("hidden_dim", "warmup_steps"), [(512, 4000), (128, 7), (1024, 1)])
def test_schedule_is_equation_3(hidden_dim, warmup_steps):
    schedule = WarmupSchedule(hidden_dim, warmup_steps)
    for step in (1, 2, 6, 7, 8, 3999, 4000, 4001, 100_000):
        expected = equation_3(step, hidden_dim, warmup_steps)
        np.testing.assert_allclose(float(schedule(step - 1)), expected, rtol=1e-6)


def test_schedule_has_the_given_peak_at_the_end_of_the_warm_up():
    schedule = WarmupSchedule.from_peak(hidden_dim=96, peak=0.003, warmup_steps=50)
    rates = [float(schedule(step)) for step in range(200)]
    assert np.argmax(rates) == 49  # update 50, counted from 0
    np.testing.assert_allclose(max(rates), 0.003, rtol=1e-6)


def test_schedule_does_not_decay_below_its_minimum():
    schedule = WarmupSchedule.from_peak(96, peak=0.003, warmup_steps=50, minimum=0.001)
    usual = WarmupSchedule.from_peak(96, peak=0.003, warmup_steps=50)
    for step in (0, 10, 49, 60, 400):
        assert float(schedule(step)) == float(usual(step))
    assert float(usual(1000)) < 0.001
    np.testing.assert_allclose([float(schedule(step)) for step in (1000, 9999)], 0.001)


def test_schedule_is_restored_from_its_config():
    schedule = WarmupSchedule(
        np.int64(256), np.int32(10), scale=np.float32(2), minimum=np.float32(0.03)
    )
    assert json.loads(json.dumps(schedule.get_config())) == schedule.get_config()
    config = keras.optimizers.schedules.serialize(schedule)
    assert keras.optimizers.schedules.deserialize(config).get_config() == schedule.get_config()


@pytest.mark.parametrize("name", ["hidden_dim", "warmup_steps"])
def test_arguments_below_1_are_refused(name):
    with pytest.raises(ValueError, match=f"`{name}`.*{name}=0"):
        WarmupSchedule(**{"hidden_dim": 8, "warmup_steps": 8, name: 0})


def test_minimum_above_the_peak_is_refused():
    for step in (0, 9, 99):  # a minimum of the peak: constant after the warm-up
        rate = float(WarmupSchedule.from_peak(96, 0.003, 10, minimum=0.003)(step))
        np.testing.assert_allclose(rate, 0.003 * min(1, (step + 1) / 10), rtol=1e-6)
    with pytest.raises(ValueError, match="`minimum` must be at most .* 0.0007. .*minimum=0.002"):
        WarmupSchedule(512, 4000, minimum=0.002)


def test_paper_optimizer_makes_the_updates_of_the_paper():
    """Two updates of one weight against Adam in plain Python, with the settings of the paper."""
    config = TransformerConfig.tiny(50)
    optimizer = paper_optimizer(config, warmup_steps=10, scale=0.5)
    weight = keras.Variable(np.array([1.0], "float32"))
    optimizer.build([weight])
    expected, m, v = 1.0, 0.0, 0.0
    for step, gradient in enumerate((0.3, -2.0), start=1):
        optimizer.apply([keras.ops.convert_to_tensor(np.array([gradient], "float32"))], [weight])
        m = 0.9 * m + 0.1 * gradient
        v = 0.98 * v + 0.02 * gradient**2
        rate = 0.5 * equation_3(step, 128, 10)
        expected -= rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.98**step)) + 1e-9)
    np.testing.assert_allclose(float(to_numpy(weight)[0]), expected, rtol=1e-5)
