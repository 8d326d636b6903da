"""Sampling as a pure function of a row's logits, parameters, seed, branch and position."""

from octavo.sampling.sampler import NO_TOKEN, Sample, SampleRow, adjust_logits, sample_row

__all__ = ["NO_TOKEN", "Sample", "SampleRow", "adjust_logits", "sample_row"]
