"""What classifiers need beyond MMPretrain; importing it registers it. It needs MMPretrain."""
