"""Token mixers that only the papers' tables of ablations have."""
