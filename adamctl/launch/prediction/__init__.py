"""Predictions by a trained model: in this process, or in several that hold parts of it."""
