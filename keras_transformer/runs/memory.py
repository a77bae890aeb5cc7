"""The memory of devices, on any backend. Imports a backend only to read its GPUs' memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error says that the memory of a device is used up."""
    names = "MemoryError", "ResourceExhaustedError", "OutOfMemoryError"
    texts = "RESOURCE_EXHAUSTED", "can't allocate memory"
    is_named = any(kind.__name__ in names for kind in type(error).__mro__)
    return is_named or any(text in str(error) for text in texts)


def peak_memory_of_gpus() -> list[int]:
    """Returns the peak memory of this process on each GPU, in bytes."""
    import keras

    backend = keras.config.backend()
    if backend == "tensorflow":
        from tensorflow import config

        number = len(config.list_physical_devices("GPU"))
        get = config.experimental.get_memory_info
        return [get(f"GPU:{index}")["peak"] for index in range(number)]
    if backend == "jax":
        import jax

        statistics = [device.memory_stats() for device in jax.local_devices()]  # `None` for a CPU
        return [stats["peak_bytes_in_use"] for stats in statistics if stats]
    import torch

    return [torch.cuda.max_memory_allocated(n) for n in range(torch.cuda.device_count())]
