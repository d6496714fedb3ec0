"""Models as graphs for torch.export and ONNX: ``graphs`` for backbones and segmentors, ``detectors`` for detectors."""
