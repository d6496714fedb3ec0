"""Checks of configs, annotations, images, label maps and folders. Wrong input is refused in one sentence."""
