"""Rivals of the papers' tables, as layers and backbones for configs."""
