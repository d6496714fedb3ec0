"""What detectors need beside MMDetection. Without MMDetection this package is empty."""
