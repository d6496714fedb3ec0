"""Detectors as graphs with NMS, and files in 8 bits."""
