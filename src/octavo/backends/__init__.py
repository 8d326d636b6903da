"""Backends: the op program of a model (``program``) and the engines that run it."""
