"""Training, calibration and evaluation of drafters."""
