"""Predictions of trained models on images and videos."""
