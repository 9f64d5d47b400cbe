"""Replicas of a model that is split over workers."""
