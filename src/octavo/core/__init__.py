"""The vocabulary that all planes share: requests, outputs, plans, results, the runner seam."""
