"""A trained translator for places where this package is not installed."""
