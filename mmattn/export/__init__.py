"""Backbones and segmentors as graphs for torch.export and ONNX."""
