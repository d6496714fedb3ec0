# UNIC's 200 epochs, on eight GPUs with 128 images each.
_base_ = ['./images.py', './recipe.py', './runtime.py']
