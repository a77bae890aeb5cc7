"""What turns a model and a dataset into a trained run."""
